"""The report in a real browser: it runs without an error, sorts, filters, and has a picture."""

import re
import shutil
import subprocess

import pytest
from helpers.html_reader import grid, read
from helpers.report_contents import contents

from contrasent.report.page import page

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason=f"no browser: none of {', '.join(NAMES)} is found"),
]

DRIVER = """
<script>
const click = (name, column) =>
  document.querySelectorAll(`#${name} thead th`)[column].querySelector("button").click();
click("sts", 1);
click("transfer", 8); click("transfer", 8);
const typed = (input, text) => { input.value = text; input.dispatchEvent(new Event("input")); };
typed(document.querySelector("[data-filter=records]"), "mrpc  BETA");
typed(document.querySelector(".browser input"), "Q2 query");
</script>
"""


def browse(folder, text, *options):
    """Open a page; what the browser printed, and what it complained of."""
    (folder / "r.html").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [
            *(BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", *options),
            (folder / "r.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_the_page_runs_without_an_error_and_sorts_and_filters(tmp_path):
    text = page(contents())
    printed, complaints = browse(tmp_path, text, "--dump-dom")
    assert complaints == [] and "3 of 3 queries" in read(printed).text
    driven = re.sub(r"<meta http-equiv[^>]*>", "", text).replace("</body>", f"{DRIVER}</body>")
    printed, complaints = browse(tmp_path, driven, "--dump-dom")
    assert complaints == []
    root = read(printed)
    for name, column, rising in (("sts", 1, False), ("transfer", 8, True)):
        headings, rows = grid(root.one("figure", id=name))
        values = [float(row[headings[column]].attributes["data-value"]) for (row,) in rows.values()]
        assert values == sorted(values, reverse=not rising)
        heads = list(root.one("figure", id=name).one("thead").all("th"))
        wanted = "ascending" if rising else "descending"
        assert [it.attributes["aria-sort"] for it in heads].count(wanted) == 1
        assert heads[column].attributes["aria-sort"] == wanted
    body = root.one("figure", id="records").one("tbody")
    left = [it.text for it in body.all("tr") if "hidden" not in it.attributes]
    assert len(left) == 2
    assert all(it.startswith("beta") and "mrpc" in it for it in left)
    asked = list(root.one("div", id="neighbours-1").all("details"))
    assert [("hidden" in it.attributes, "open" in it.attributes) for it in asked] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    assert "1 of 3 queries" in root.text
