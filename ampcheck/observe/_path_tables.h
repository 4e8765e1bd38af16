/* The tables of _path.c: a map of addresses, the tensors measured last, and what was measured, by site. */
#include "_exphist.h"

/* ---- a map from three words to one ------------------------------------------------------------------------------- */

typedef struct { uint64_t a, b, c; int64_t value, epoch; } Slot; /* empty unless its epoch is the map's */
typedef struct { Slot *slots; size_t size, count; int64_t epoch; } Map; /* size is a power of two */

static Slot *map_slot(const Map *m, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t hash = (a ^ b * 0x9e3779b97f4a7c15ull ^ c * 0xc2b2ae3d27d4eb4full) * 0xff51afd7ed558ccdull;
    for (size_t i = (hash >> 32) & (m->size - 1);; i = (i + 1) & (m->size - 1)) {
        Slot *slot = &m->slots[i];
        if (slot->epoch != m->epoch || (slot->a == a && slot->b == b && slot->c == c)) return slot;
    }
}

static int map_get(const Map *m, uint64_t a, uint64_t b, uint64_t c, int64_t *value)
{
    const Slot *slot = m->count ? map_slot(m, a, b, c) : NULL;
    if (!slot || slot->epoch != m->epoch) return 0;
    *value = slot->value;
    return 1;
}

static int map_put(Map *m, uint64_t a, uint64_t b, uint64_t c, int64_t value)
{
    if (2 * (m->count + 1) > m->size) { /* at most half full */
        Map wide = {NULL, m->size ? 2 * m->size : 256, m->count, m->epoch + !m->epoch};
        wide.slots = calloc(wide.size, sizeof *wide.slots);
        if (!wide.slots) { PyErr_NoMemory(); return -1; }
        for (size_t i = 0; i < m->size; i++)
            if (m->slots[i].epoch == m->epoch) *map_slot(&wide, m->slots[i].a, m->slots[i].b, m->slots[i].c) = m->slots[i];
        free(m->slots);
        *m = wide;
    }
    Slot *slot = map_slot(m, a, b, c);
    m->count += slot->epoch != m->epoch;
    *slot = (Slot){a, b, c, value, m->epoch};
    return 0;
}

enum { SPARE_SLOTS = 4096 };

/* Empties a map and keeps its memory, unless that is a lot. */
static void map_clear(Map *m)
{
    if (m->size > SPARE_SLOTS) {
        free(m->slots);
        *m = (Map){0};
    }
    m->count = 0;
    m->epoch++;
}

/* ---- seen.py: the rows of the tensors measured last ---------------------------------------------------------------- */

#define REMEMBERED 512 /* as in seen.py */
#define BUCKETS 1024
#define NONE (-1)

typedef struct {
    PyObject *tensor, *weak; /* an address to compare with, and what tells whether it still is that tensor */
    int64_t version, row, time; /* time: how many had been remembered */
    int next, older, newer; /* in the bucket; by time of remembering */
} Memory;

typedef struct {
    Memory memories[REMEMBERED];
    int buckets[BUCKETS];
    int count, oldest, newest;
    int64_t time;
} Seen;

static int bucket_of(PyObject *tensor) { return (int)(((uintptr_t)tensor >> 4) * 2654435761u >> 7) & (BUCKETS - 1); }

static void seen_start(Seen *s)
{
    for (int i = 0; i < BUCKETS; i++) s->buckets[i] = NONE;
    s->count = 0;
    s->time = 0;
    s->oldest = s->newest = NONE;
}

static void seen_forget(Seen *s)
{
    int count = s->count;
    PyObject *weak[REMEMBERED];
    for (int i = 0; i < count; i++) weak[i] = s->memories[i].weak;
    seen_start(s);
    for (int i = 0; i < count; i++) Py_XDECREF(weak[i]);
}

static int seen_at(const Seen *s, PyObject *tensor)
{
    int at = s->buckets[bucket_of(tensor)];
    while (at != NONE && s->memories[at].tensor != tensor) at = s->memories[at].next;
    return at;
}

/* The memory of a tensor that is recent enough: not whichever are still there, which depends on their addresses. */
static const Memory *seen_find(const Seen *s, PyObject *tensor)
{
    int at = seen_at(s, tensor);
    return at != NONE && s->time - s->memories[at].time < REMEMBERED ? &s->memories[at] : NULL;
}

static void seen_unlink(Seen *s, int at)
{
    Memory *m = &s->memories[at];
    int *link = &s->buckets[bucket_of(m->tensor)];
    while (*link != at) link = &s->memories[*link].next;
    *link = m->next;
    if (m->older == NONE) s->oldest = m->newer; else s->memories[m->older].newer = m->newer;
    if (m->newer == NONE) s->newest = m->older; else s->memories[m->newer].older = m->older;
}

/* Takes over the reference `weak`. */
static void seen_remember(Seen *s, PyObject *tensor, PyObject *weak, int64_t version, int64_t row)
{
    PyObject *dropped = NULL;
    int at = seen_at(s, tensor);
    if (at == NONE && s->count < REMEMBERED) {
        at = s->count++;
    } else {
        if (at == NONE) at = s->oldest;
        seen_unlink(s, at);
        dropped = s->memories[at].weak;
    }
    int *bucket = &s->buckets[bucket_of(tensor)];
    s->memories[at] = (Memory){tensor, weak, version, row, ++s->time, *bucket, s->newest, NONE};
    *bucket = at;
    if (s->newest == NONE) s->oldest = at; else s->memories[s->newest].newer = at;
    s->newest = at;
    Py_XDECREF(dropped);
}

/* ---- book.py: what was measured, by site --------------------------------------------------------------------------- */

#define FLUSH_ROWS 1024 /* as in book.py: older rows cannot be shared any more, on either path */

typedef struct {
    int64_t zeros, infs, nans, amax, start; /* start: of its counts */
    double sumsq;
    int lo, hi;
} Row;

typedef struct {
    int64_t *sums; /* a record a site */
    int64_t sites, begun, first_row, measured; /* sites: room for so many; begun: so many hold anything but noise */
    Row *rows; /* room for FLUSH_ROWS */
    int held;
    int64_t *counts; /* of the rows held, without their empty ends */
    int64_t used, room;
} Ledger;

static int grown(int64_t **block, int64_t *room, int64_t wanted, int64_t words)
{
    if (wanted <= *room) return 0;
    int64_t size = 2 * *room > wanted ? 2 * *room : wanted + 64;
    int64_t *wide = realloc(*block, (size_t)(size * words) * sizeof **block);
    if (!wide) { PyErr_NoMemory(); return -1; }
    *block = wide;
    *room = size;
    return 0;
}

/* The blocks of the ledger that ended last: memory used again need not be mapped again, page by page. */
enum { SPARE_SITES = 1024, SPARE_COUNTS = 1 << 17 };
static struct { int64_t *sums, *counts, sites, room; Row *rows; } spare;

static int ledger_start(Ledger *l)
{
    l->sums = spare.sums, l->sites = spare.sites;
    l->counts = spare.counts, l->room = spare.room;
    l->rows = spare.rows ? spare.rows : malloc(FLUSH_ROWS * sizeof *l->rows);
    memset(&spare, 0, sizeof spare);
    if (!l->rows) PyErr_NoMemory();
    return l->rows ? 0 : -1;
}

static void ledger_end(Ledger *l)
{
    if (spare.rows || l->sites > SPARE_SITES || l->room > SPARE_COUNTS) {
        free(l->sums);
        free(l->counts);
        free(l->rows);
    } else {
        spare.sums = l->sums, spare.sites = l->sites;
        spare.counts = l->counts, spare.room = l->room;
        spare.rows = l->rows;
    }
    memset(l, 0, sizeof *l);
}

/* Sees to it that so many sites have a record. */
static int ledger_begin(Ledger *l, int64_t sites)
{
    if (sites <= l->begun) return 0;
    if (grown(&l->sums, &l->sites, sites, RECORD_WORDS)) return -1;
    memset(l->sums + l->begun * RECORD_WORDS, 0, (size_t)((sites - l->begun) * RECORD_WORDS) * sizeof *l->sums);
    l->begun = sites;
    return 0;
}

static int ledger_add(Ledger *l, int64_t number, const Row *row)
{
    if (ledger_begin(l, number + 1)) return -1;
    int64_t *record = l->sums + number * RECORD_WORDS;
    const int64_t *counts = l->counts + row->start;
    double squares;
    for (int b = row->lo; b <= row->hi; b++) record[b] += counts[b - row->lo];
    record[ZEROS] += row->zeros;
    record[INFS] += row->infs;
    record[NANS] += row->nans;
    if (row->amax > record[AMAX]) record[AMAX] = row->amax;
    memcpy(&squares, &record[SUMSQ], 8);
    squares += row->sumsq;
    memcpy(&record[SUMSQ], &squares, 8);
    record[CALLS]++;
    return 0;
}

enum { STRIDE = 16 };

static int any(const int64_t *bins)
{
    int64_t all = 0;
    for (int i = 0; i < STRIDE; i++) all |= bins[i];
    return all != 0;
}

/* Adds a tensor's tally to a site; returns its row, -1 on failure. */
static int64_t ledger_take(Ledger *l, int64_t number, const Tally *t)
{
    int lo = 0, hi = 255;
    while (lo < 256 && !any(t->bins + lo)) lo += STRIDE; /* most are empty */
    while (hi > lo && !any(t->bins + hi + 1 - STRIDE)) hi -= STRIDE;
    while (lo < 256 && !t->bins[lo]) lo++;
    while (hi >= lo && !t->bins[hi]) hi--;
    int64_t start = l->used, row = l->first_row + l->held;
    if (grown(&l->counts, &l->room, start + hi - lo + 1, 1)) return -1;
    Row *kept = &l->rows[l->held];
    *kept = (Row){t->zeros, t->infs, t->nans, (int64_t)t->amax, start, t->sumsq, lo, hi};
    memcpy(l->counts + start, t->bins + lo, (size_t)(hi - lo + 1) * sizeof *l->counts);
    if (ledger_add(l, number, kept)) return -1;
    l->used = start + hi - lo + 1;
    l->measured++;
    if (++l->held == FLUSH_ROWS) {
        l->first_row += l->held;
        l->held = 0;
        l->used = 0;
    }
    return row;
}
