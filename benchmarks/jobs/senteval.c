/* A logistic regression as SentEval trains it, one batch after the other. See compiled.py. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CLASSES = 64 };

/* What to train on or to be judged by: rows of `width` features, and their classes. */
typedef struct {
    const float *features;
    const long *labels;
    long rows;
} Part;

/* The presets' settings, and the penalty. */
typedef struct {
    double decay;
    long width, classes, batch, tenacity, epoch_size, max_epochs;
} Settings;

/* The scores of one row; a row of weights ends with the bias. */
static void scores(const Settings *of, const float *weights, const float *row, float *found) {
    for (long c = 0; c < of->classes; c++) {
        const float *weight = weights + c * (of->width + 1);
        float sum = 0;
        for (long d = 0; d < of->width; d++) sum += row[d] * weight[d];
        found[c] = sum + weight[of->width];
    }
}

void predict(const Settings *of, const float *weights, const Part *part, long *found) {
    for (long row = 0; row < part->rows; row++) {
        float given[MOST_CLASSES];
        scores(of, weights, part->features + row * of->width, given);
        found[row] = 0;
        for (long c = 1; c < of->classes; c++)
            if (given[c] > given[found[row]]) found[row] = c;
    }
}

static void add_gradient(const Settings *of, const float *weights, const float *row, long label,
                         float share, float *gradient) {
    float given[MOST_CLASSES], most, sum = 0;
    scores(of, weights, row, given);
    most = given[0];
    for (long c = 1; c < of->classes; c++) most = fmaxf(most, given[c]);
    for (long c = 0; c < of->classes; c++) sum += given[c] = expf(given[c] - most);
    for (long c = 0; c < of->classes; c++) {
        float error = (given[c] / sum - (c == label)) * share;
        float *into = gradient + c * (of->width + 1);
        for (long d = 0; d < of->width; d++) into[d] += error * row[d];
        into[of->width] += error;
    }
}

/* Adam with torch's settings. */
static void update(const Settings *of, long size, long step, float *weights, const float *gradient,
                   float *first, float *second) {
    float rate = (float)(1e-3 / (1 - pow(0.9, step)));
    float root = (float)sqrt(1 - pow(0.999, step));
    float decay = (float)of->decay;
    for (long i = 0; i < size; i++) {
        float slope = gradient[i] + decay * weights[i];
        first[i] += (slope - first[i]) * (1 - 0.9f);
        second[i] = 0.999f * second[i] + (1 - 0.999f) * slope * slope;
        weights[i] -= rate * first[i] / (sqrtf(second[i]) / root + 1e-8f);
    }
}

/* Train `weights` (classes, width + 1); they become the best ones. `orders` has the rows of each
   epoch. Returns the best accuracy on `dev`, or -1 without memory. */
double fit(const Settings *of, const Part *train, const Part *dev, const int *orders,
           float *weights) {
    long size = of->classes * (of->width + 1), step = 0, misses = 0, epoch = 0;
    float *held = calloc(4 * size, sizeof(float));
    long *found = malloc(dev->rows * sizeof(long));
    double best = -1;
    if (held && found) {
        float *first = held, *second = held + size, *gradient = held + 2 * size;
        float *kept = held + 3 * size;
        while (epoch <= of->max_epochs) {
            for (long last = epoch + of->epoch_size; epoch < last; epoch++) {
                const int *order = orders + epoch * train->rows;
                for (long start = 0; start < train->rows; start += of->batch) {
                    long end = start + of->batch < train->rows ? start + of->batch : train->rows;
                    memset(gradient, 0, size * sizeof(float));
                    for (long i = start; i < end; i++)
                        add_gradient(of, weights, train->features + order[i] * of->width,
                                     train->labels[order[i]], 1.0f / (end - start), gradient);
                    update(of, size, ++step, weights, gradient, first, second);
                }
            }
            long right = 0;
            predict(of, weights, dev, found);
            for (long row = 0; row < dev->rows; row++) right += found[row] == dev->labels[row];
            double accuracy = (double)right / dev->rows;
            if (accuracy > best) {
                best = accuracy;
                memcpy(kept, weights, size * sizeof(float));
            } else if (misses++ >= of->tenacity) {
                break;
            }
        }
        memcpy(weights, kept, size * sizeof(float));
    }
    free(held);
    free(found);
    return best;
}
