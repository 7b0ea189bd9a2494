/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target on files, one after the other, where libFuzzer is not: each
 * argument is a file. An input that breaks the property aborts; its name is the last
 * one printed with -v.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nt_fuzz.h"

/* The whole file, exactly as long as it is so that reading beyond it shows. */
static uint8_t *
standalone_read(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return NULL;
    }
    uint8_t *bytes = NULL;
    size_t capacity = 0, got;
    *size = 0;
    do {
        capacity = capacity == 0 ? 4096 : capacity * 2;
        bytes = realloc(bytes, capacity);
        if (bytes == NULL) {
            break;
        }
        got = fread(bytes + *size, 1, capacity - *size, file);
        *size += got;
    } while (*size == capacity);
    (void)fclose(file);
    uint8_t *exact = malloc(*size == 0 ? 1 : *size);
    if (bytes != NULL && exact != NULL) {
        memcpy(exact, bytes, *size);
    }
    free(bytes);
    return exact;
}

int
main(int count, char **arguments)
{
    const int verbose = count > 1 && strcmp(arguments[1], "-v") == 0;
    int done = 0;
    for (int i = 1 + verbose; i < count; i++) {
        size_t size;
        uint8_t *bytes = standalone_read(arguments[i], &size);
        if (bytes == NULL) {
            (void)fprintf(stderr, "can't read %s\n", arguments[i]);
            return 2;
        }
        if (verbose) {
            (void)fprintf(stderr, "%s\n", arguments[i]);
        }
        (void)LLVMFuzzerTestOneInput(bytes, size);
        free(bytes);
        done++;
    }
    (void)printf("%d inputs held\n", done);
    return 0;
}
