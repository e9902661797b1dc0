from .server import McpOptions as McpOptions
from .server import ServeOptions as ServeOptions
from .server import asgi_application as asgi_application
from .server import run_mcp as run_mcp
from .server import run_server as run_server
