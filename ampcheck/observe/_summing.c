/* What is read once a step: the statistics that records stand for, and how far gradients are from FP32's. */
#include "_exphist.h"

#include <math.h>

#define LANES 8 /* sums that run side by side, so that one addition need not wait for the one before */

/* ---- from records to statistics ---------------------------------------------------------------------------------- */

/* The fields of a TensorStats, or None where nothing was measured. */
static PyObject *fields_of(const int64_t *record, long long tiny)
{
    int low = 0, high = 256;
    if (!record[CALLS]) Py_RETURN_NONE;
    while (high > 0 && !record[high - 1]) high--;
    while (low < high && !record[low]) low++;
    PyObject *counts = PyTuple_New(high - low);
    for (int bin = low; counts && bin < high; bin++) {
        PyObject *held = PyLong_FromLongLong(record[bin]);
        if (!held || PyTuple_SetItem(counts, bin - low, held)) Py_CLEAR(counts);
    }
    if (!counts) return NULL;
    return Py_BuildValue("(LNLLLdd)", high ? tiny + low : 0ll, counts, (long long)record[ZEROS],
                         (long long)record[INFS], (long long)record[NANS], as_double((uint64_t)record[AMAX]),
                         as_double((uint64_t)record[SUMSQ]));
}

PyObject *py_stats(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    long long v[3];
    if (!integers(args, count, 3, v)) return NULL;
    PyObject *found = PyList_New((Py_ssize_t)v[1]);
    for (Py_ssize_t i = 0; found && i < (Py_ssize_t)v[1]; i++) {
        PyObject *fields = fields_of((const int64_t *)(intptr_t)v[0] + i * RECORD_WORDS, v[2]);
        if (!fields || PyList_SetItem(found, i, fields)) Py_CLEAR(found);
    }
    return found;
}

/* ---- gradients ----------------------------------------------------------------------------------------------------- */

static double added(const double *lanes)
{
    double sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += lanes[lane];
    return sum;
}

/* Squares of FP32's gradient and of its difference to the other, unscaled; where either is not finite: 0. */
static int64_t energies(const float *before, const float *scaled, int64_t n, float unscale, double *error, double *norm,
                        int finite)
{
    double errors[LANES] = {0}, norms[LANES] = {0};
    int64_t bad = 0, i = 0;
    if (finite) {
        for (; i + LANES <= n; i += LANES)
            for (int lane = 0; lane < LANES; lane++) {
                float held = before[i + lane], off = scaled[i + lane] * unscale - held;
                errors[lane] += (double)off * off;
                norms[lane] += (double)held * held;
            }
    }
    for (; i < n; i++) {
        float held = before[i], other = scaled[i];
        if (!finite) {
            if (!isfinite(held)) continue;
            bad += !isfinite(other);
            other = isfinite(other) ? other : 0;
        }
        float off = other * unscale - held;
        errors[0] += (double)off * off;
        norms[0] += (double)held * held;
    }
    *error = added(errors);
    *norm = added(norms);
    return bad;
}

PyObject *py_compare(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    long long v[3];
    if (count != 5) return PyErr_Format(PyExc_TypeError, "expected 5 arguments, got %zd", count);
    if (!integers(args, 3, 3, v)) return NULL;
    float unscale = (float)PyFloat_AsDouble(args[3]);
    double share = PyFloat_AsDouble(args[4]), error, norm;
    const float *before = (const float *)(intptr_t)v[0], *scaled = (const float *)(intptr_t)v[1];
    int64_t n = v[2], bad = 0, lost = 0, matter = 0;
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    energies(before, scaled, n, unscale, &error, &norm, 1);
    int finite = isfinite(error + norm) != 0;
    if (!finite) bad = energies(before, scaled, n, unscale, &error, &norm, 0);
    float least = (float)(share * sqrt(norm / (double)(n > 1 ? n : 1)));
    for (int64_t i = 0; i < n; i++) {
        float size = fabsf(before[i]);
        int matters = (size >= least) & (size > 0) & (finite || isfinite(size));
        matter += matters;
        lost += matters & (scaled[i] == 0);
    }
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(ddLLL)", error, norm, (long long)bad, (long long)lost, (long long)matter);
}
