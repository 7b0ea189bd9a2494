/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "trace/nt_settings.h"

#define SETTINGS_MIB UINT64_C(1048576)

/* What is written so far; `length` goes on counting when the buffer is full. */
typedef struct settings_writer {
    char *buffer;
    size_t size;
    size_t length;
} settings_writer;

static void
settings_put(settings_writer *w, const char *text)
{
    for (; *text != '\0'; text++, w->length++) {
        if (w->length + 1 < w->size) {
            w->buffer[w->length] = *text;
        }
    }
}

static void
settings_put_key(settings_writer *w, const char *key)
{
    if (w->length != 0) {
        settings_put(w, ",");
    }
    settings_put(w, key);
    settings_put(w, ":");
}

static void
settings_put_number(settings_writer *w, uint64_t number)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)number);
    settings_put(w, text);
}

static void
settings_put_mib(settings_writer *w, const char *key, uint64_t bytes)
{
    settings_put_key(w, key);
    settings_put_number(w, bytes / SETTINGS_MIB);
}

/* With the fewest digits that are read back as the same number (up to 15 are enough for
 * what was written with up to 15), 18 at most; and with integers, so that the process's
 * locale plays no part. */
static void
settings_put_share(settings_writer *w, const char *key, double share)
{
    uint64_t power = 10, parts = 0;
    int digits = 1;
    for (;; digits++, power *= 10) {
        parts = (uint64_t)(share * (double)power + 0.5);
        if (digits == 18 || (double)parts / (double)power == share) {
            break;
        }
    }
    /* Nothing above zero may turn into a zero, which is out of range. */
    parts += parts == 0 && share > 0;
    char text[48];
    (void)snprintf(text, sizeof text, "%llu.%0*llu",
                   (unsigned long long)(parts / power), digits,
                   (unsigned long long)(parts % power));
    settings_put_key(w, key);
    settings_put(w, text);
}

static void
settings_put_interval(settings_writer *w, size_t entry, uint32_t divisions)
{
    settings_put_number(w, UINT64_C(1) << entry);
    settings_put(w, ":");
    settings_put_number(w, divisions);
}

/* The shortest list: the first entry stands for all before it, `>` for all behind the
 * last, and what is not named is off. */
static void
settings_put_roundup(settings_writer *w, const uint32_t *table)
{
    uint32_t entries[NT_ROUNDUP_INTERVALS];
    const size_t end = NT_ROUNDUP_INTERVALS - 1;
    for (size_t i = 0; i <= end; i++) {
        entries[i] = table[i] == 0 ? 1 : table[i];
    }
    size_t first = 0, tail = end;
    while (first < end && entries[first + 1] == entries[0]) {
        first++;
    }
    while (tail > 0 && entries[tail - 1] == entries[end]) {
        tail--;
    }
    if (first == end && entries[0] == 1) {
        return;
    }
    settings_put_key(w, "roundup_power2_divisions");
    if (first == end) {
        settings_put_number(w, entries[0]);
        return;
    }
    settings_put(w, "[");
    settings_put_interval(w, first, entries[0]);
    for (size_t i = first + 1; i < tail; i++) {
        if (entries[i] > 1 || (i + 1 == tail && entries[end] > 1)) {
            settings_put(w, ",");
            settings_put_interval(w, i, entries[i]);
        }
    }
    if (entries[end] > 1) {
        settings_put(w, ",>:");
        settings_put_number(w, entries[end]);
    }
    settings_put(w, "]");
}

size_t
nt_settings_format(const nt_settings *settings, char *buffer, size_t size)
{
    const nt_settings usual = nt_settings_default();
    settings_writer w = {.buffer = buffer, .size = size};
    if (!settings->native_backend) {
        settings_put_key(&w, "backend");
        settings_put(&w, "cudaMallocAsync");
    }
    if (settings->expandable_segments) {
        settings_put_key(&w, "expandable_segments");
        settings_put(&w, "True");
    }
    if (settings->max_split_size != usual.max_split_size) {
        settings_put_mib(&w, "max_split_size_mb", settings->max_split_size);
    }
    if (settings->max_non_split_rounding != settings->large_segment_size) {
        settings_put_mib(&w, "max_non_split_rounding_mb",
                         settings->max_non_split_rounding);
    }
    if (settings->large_segment_size != usual.large_segment_size) {
        settings_put_mib(&w, "large_segment_size_mb", settings->large_segment_size);
    }
    if (settings->garbage_collection_threshold > 0) {
        settings_put_share(&w, "garbage_collection_threshold",
                           settings->garbage_collection_threshold);
    }
    if (settings->per_process_memory_fraction < 1) {
        settings_put_share(&w, "per_process_memory_fraction",
                           settings->per_process_memory_fraction);
    }
    settings_put_roundup(&w, settings->roundup_power2_divisions);
    if (size != 0) {
        buffer[w.length < size ? w.length : size - 1] = '\0';
    }
    return w.length;
}
