/* What the sources of the extension share: the kernel's tally, and where a record keeps what. */
#ifndef AMPCHECK_EXPHIST_H
#define AMPCHECK_EXPHIST_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { F32, F64, F16, BF16, E4M3, E5M2, DTYPES };
enum { ZEROS = 256, INFS, NANS, AMAX, SUMSQ, CALLS, RECORD_WORDS };

typedef struct {
    int64_t bins[256]; /* non-zero finite elements by exponent field */
    int64_t zeros, infs, nans;
    uint64_t amax; /* as float64 bits */
    double sumsq;
} Tally;

static inline double as_double(uint64_t bits) { double d; memcpy(&d, &bits, 8); return d; }

/* Tallies memory; gives up the GIL where it is large. */
void tally_memory(const void *data, int64_t n, int dtype, int64_t threads, Tally *total);
/* Adds a tally to a record, every element `weight` times. */
void store(const Tally *tally, int64_t weight, int64_t *record);

/* Reads integers from Python; 0 with an exception set. */
int integers(PyObject *const *args, Py_ssize_t got, Py_ssize_t want, long long *out);

PyObject *py_stats(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *py_compare(PyObject *self, PyObject *const *args, Py_ssize_t count);

/* Adds the type Path to the module; -1 with an exception set. */
int add_path_type(PyObject *module);

#endif
