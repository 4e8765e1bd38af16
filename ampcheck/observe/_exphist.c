/* The module: threads, records and the Python functions around the kernels.
 *
 * One read of memory gives a tensor's exponent histogram, zeros, infs, nans, amax and sum of squares; how is in
 * _exphist_blocks.h, and the record's layout in measure.py. */
#include "_exphist.h"

#if defined(_WIN32)
#define HAVE_THREADS 0
#else
#define HAVE_THREADS 1
#include <pthread.h>
#endif

#include "_exphist_blocks.h"
#include "_exphist_x86.h"

#define RELEASE_GIL (1 << 16) /* elements; below it the call is over before another thread could start */
#define MIN_SHARE (1 << 19)   /* elements that are worth starting a thread for */
#define MAX_THREADS 64
#define ISAS ((int)(sizeof NAMES / sizeof NAMES[0]))

static Kernel kernel; /* the best of this machine, or the one a test asked for */

/* ---- threads and record ------------------------------------------------------------------------------------------ */

typedef struct {
    const char *data;
    int64_t n;
    int dtype;
    Tally tally;
} Share;

/* Subnormals count whatever mode the thread is in: returns the mode and turns flushing off, or puts a mode back. */
#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
static uint64_t no_flush(void) { uint64_t mode = _mm_getcsr(); _mm_setcsr((unsigned)mode & ~0x8040u); return mode; }
static void restore(uint64_t mode) { _mm_setcsr((unsigned)mode); }
#elif defined(__aarch64__) && defined(__GNUC__)
static void restore(uint64_t mode) { __asm__ volatile("msr fpcr, %0" ::"r"(mode) : "memory"); }
static uint64_t no_flush(void)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode)::"memory");
    restore(mode & ~(1ull << 24));
    return mode;
}
#else
static uint64_t no_flush(void) { return 0; }
static void restore(uint64_t mode) { (void)mode; }
#endif

static void run_kernel(const char *data, int64_t n, int dtype, Tally *tally)
{
    uint64_t mode = no_flush();
    kernel(data, n, dtype, tally);
    restore(mode);
}

static void merge(Tally *into, const Tally *t)
{
    for (int b = 0; b < 256; b++) into->bins[b] += t->bins[b];
    into->zeros += t->zeros;
    into->infs += t->infs;
    into->nans += t->nans;
    into->amax = t->amax > into->amax ? t->amax : into->amax;
    into->sumsq += t->sumsq;
}

#if HAVE_THREADS
static void *thread_main(void *share) { Share *s = share; run_kernel(s->data, s->n, s->dtype, &s->tally); return NULL; }

static int run_threads(const char *data, int64_t n, int dtype, int threads, Tally *total)
{
    Share *shares = calloc((size_t)threads, sizeof *shares);
    pthread_t ids[MAX_THREADS];
    int started[MAX_THREADS] = {0};
    if (!shares) return 0;
    int64_t each = (n / threads + 63) & ~(int64_t)63;
    for (int i = 0; i < threads; i++) {
        int64_t first = each * i < n ? each * i : n;
        int64_t last = i == threads - 1 || first + each > n ? n : first + each;
        shares[i].data = data + first * WIDTH[dtype];
        shares[i].n = last - first;
        shares[i].dtype = dtype;
        if (i) started[i] = pthread_create(&ids[i], NULL, thread_main, &shares[i]) == 0;
    }
    for (int i = 0; i < threads; i++)
        if (!started[i]) thread_main(&shares[i]); /* the first, and any that could not start */
    for (int i = 0; i < threads; i++) {
        if (started[i]) pthread_join(ids[i], NULL);
        merge(total, &shares[i].tally);
    }
    free(shares);
    return 1;
}
#endif

static void tally_of(const char *data, int64_t n, int dtype, int64_t threads, Tally *total)
{
#if HAVE_THREADS
    if (threads > n / MIN_SHARE) threads = n / MIN_SHARE;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    if (threads > 1 && run_threads(data, n, dtype, (int)threads, total)) return;
#endif
    run_kernel(data, n, dtype, total);
}

void store(const Tally *t, int64_t weight, int64_t *record)
{
    for (int b = 0; b < 256; b++) record[b] += weight * t->bins[b];
    record[ZEROS] += weight * t->zeros;
    record[INFS] += weight * t->infs;
    record[NANS] += weight * t->nans;
    if (t->amax > (uint64_t)record[AMAX]) record[AMAX] = (int64_t)t->amax; /* bits of floats >= 0 order as integers */
    record[SUMSQ] = (int64_t)wide_bits_of(as_double((uint64_t)record[SUMSQ]) + (double)weight * t->sumsq);
    record[CALLS]++;
}

void tally_memory(const void *data, int64_t n, int dtype, int64_t threads, Tally *total)
{
    memset(total, 0, sizeof *total);
    if (n >= RELEASE_GIL) {
        Py_BEGIN_ALLOW_THREADS
        tally_of((const char *)data, n, dtype, threads, total);
        Py_END_ALLOW_THREADS
    } else if (n) {
        tally_of((const char *)data, n, dtype, 1, total);
    }
}

/* ---- Python ------------------------------------------------------------------------------------------------------ */

int integers(PyObject *const *args, Py_ssize_t got, Py_ssize_t want, long long *out)
{
    if (got != want) {
        PyErr_Format(PyExc_TypeError, "expected %zd integers, got %zd", want, got);
        return 0;
    }
    for (Py_ssize_t i = 0; i < want; i++) out[i] = PyLong_AsLongLong(args[i]);
    return !PyErr_Occurred();
}

static int readable(long long data, long long n, long long dtype)
{
    if (n >= 0 && dtype >= 0 && dtype < DTYPES && (data || !n)) return 1;
    PyErr_Format(PyExc_ValueError, "expected allocated memory of a known dtype, got address %lld, %lld elements, "
                 "dtype code %lld", data, n, dtype);
    return 0;
}

static PyObject *measure(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    long long v[6];
    Tally total;
    if (!integers(args, count, 6, v) || !readable(v[0], v[1], v[2])) return NULL;
    tally_memory((const void *)(intptr_t)v[0], v[1], (int)v[2], v[5], &total);
    store(&total, v[4], (int64_t *)(intptr_t)v[3]); /* under the GIL: two threads may share a record */
    Py_RETURN_NONE;
}

static double element(const char *data, int64_t i, int dtype)
{
    double d;
    if (dtype == F64) { memcpy(&d, data + 8 * i, 8); return d; }
    int negative = (uint8_t)data[WIDTH[dtype] * (i + 1) - 1] >> 7; /* measure.py keeps big-endian machines out */
    d = as_float(load(data, i, dtype));
    return negative ? -d : d;
}

enum { DIMS = 16 };

/* Where in memory the element at a place in logical order is, by sizes and strides. */
static int64_t place_of(int64_t place, const long long *sizes, const long long *strides, Py_ssize_t dims)
{
    int64_t found = 0;
    while (dims-- > 0) {
        found += place % sizes[dims] * strides[dims];
        place /= sizes[dims];
    }
    return found;
}

static PyObject *sample(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    long long v[5], shape[2 * DIMS];
    Py_ssize_t dims = (count - 5) / 2;
    if (dims > DIMS) return PyErr_Format(PyExc_ValueError, "expected at most %d dimensions, got %zd", DIMS, dims);
    if (dims > 0 && !integers(args + 5, count - 5, 2 * dims, shape)) return NULL;
    if (!integers(args, dims > 0 ? 5 : count, 5, v) || !readable(v[0], v[1], v[2])) return NULL;
    int64_t n = v[1], k = v[4] < n ? v[4] : n;
    double *out = (double *)(intptr_t)v[3];
    uint64_t mode = no_flush();
    for (int64_t i = 0; i < k; i++) {
        int64_t from = i * n / k, width = (i + 1) * n / k - from;
        int64_t spread = (int64_t)(((uint64_t)(i + 1) * 2654435761u & 0xffffffffu) >> 8);
        int64_t place = from + spread % width;
        if (dims > 0) place = place_of(place, shape, shape + dims, dims);
        out[i] = element((const char *)(intptr_t)v[0], place, (int)v[2]);
    }
    restore(mode);
    return PyLong_FromLongLong(k > 0 ? k : 0);
}

static PyObject *isas(PyObject *self, PyObject *unused)
{
    PyObject *names = PyList_New(0);
    for (int i = 0; names && i < ISAS; i++) {
        if (!supported(i)) continue;
        PyObject *name = PyUnicode_FromString(NAMES[i]);
        if (!name || PyList_Append(names, name)) Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

static PyObject *force_isa(PyObject *self, PyObject *name)
{
    for (int i = 0; i < ISAS; i++) {
        if (!supported(i) || PyUnicode_CompareWithASCIIString(name, NAMES[i])) continue;
        kernel = KERNELS[i];
        Py_RETURN_NONE;
    }
    return PyErr_Format(PyExc_ValueError, "expected one of isas(), got %R", name);
}

/* What a call lists, of some types or of types made of them. No other thread runs before the rest is let go: whoever
 * holds a tuple that another thread is still filling breaks that thread, since only one that is referred to once may
 * be resized. */
static PyObject *of_types(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    if (n != 3 || !PyTuple_Check(args[1]) || !PyTuple_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "expected (call, arguments, types)");
    PyObject *found = PyList_New(0), *all = found ? PyObject_CallObject(args[0], args[1]) : NULL;
    Py_ssize_t kinds = PyTuple_Size(args[2]), size = all && PyList_Check(all) ? PyList_Size(all) : 0;
    for (Py_ssize_t i = 0; found && i < size; i++) {
        PyObject *one = PyList_GetItem(all, i);
        for (Py_ssize_t k = 0; k < kinds; k++) {
            if (!PyType_IsSubtype(Py_TYPE(one), (PyTypeObject *)PyTuple_GetItem(args[2], k))) continue;
            if (PyList_Append(found, one)) Py_CLEAR(found);
            break;
        }
    }
    if (!all) Py_CLEAR(found);
    Py_XDECREF(all);
    return found;
}

/* What native.py asks for; one more whenever a function or Path takes or returns something else. */
enum { INTERFACE = 7 };

static PyMethodDef METHODS[] = {
    {"measure", (PyCFunction)(void (*)(void))measure, METH_FASTCALL,
     "measure(data_ptr, n, dtype_code, record_ptr, weight, threads): adds n elements to a record."},
    {"sample", (PyCFunction)(void (*)(void))sample, METH_FASTCALL,
     "sample(data_ptr, n, dtype_code, out_ptr, k, *sizes, *strides): writes one element of each k-th as float64; "
     "returns how many."},
    {"stats", (PyCFunction)(void (*)(void))py_stats, METH_FASTCALL,
     "stats(records_ptr, n, exponent): the fields of TensorStats of n records, None of one without calls; their first "
     "word counts elements of that exponent."},
    {"compare", (PyCFunction)(void (*)(void))py_compare, METH_FASTCALL,
     "compare(before_ptr, scaled_ptr, n, unscale, share): error energy, reference energy, non-finites, elements lost "
     "and elements that matter, of float32."},
    {"of_types", (PyCFunction)(void (*)(void))of_types, METH_FASTCALL,
     "of_types(call, arguments, types): what a call lists, of these types or of types made of them."},
    {"isas", isas, METH_NOARGS, "isas(): the instruction sets that this machine can run, best first."},
    {"force_isa", force_isa, METH_O, "force_isa(name): measures with that instruction set from now on."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_exphist", "The statistics kernel of measure.py.", -1,
                                    METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__exphist(void)
{
    for (int i = ISAS - 1; i >= 0; i--)
        if (supported(i)) kernel = KERNELS[i];
    PyObject *module = PyModule_Create(&MODULE);
    if (module && (add_path_type(module) || PyModule_AddIntConstant(module, "INTERFACE", INTERFACE))) Py_CLEAR(module);
    return module;
}
