/* SPDX-License-Identifier: Apache-2.0 */
/* From a pickle to a sealed snapshot: the schema of PyTorch's snapshots (torch 1.13 to
 * 2.15) laid over nt_pickle. Missing and unknown keys, unknown actions and devices
 * without events are normal. A file that ends early gives what was whole by then,
 * marked partial. */
#ifndef NT_READER_H
#define NT_READER_H

#include "base/nt_base.h"
#include "trace/nt_snapshot.h"
#include "trace/nt_source.h"

/* Reads one snapshot from `source` (from where it stands; bytes behind the pickle's
 * STOP are left alone). All memory comes from `alloc`: to bound it, hand in an
 * nt_budget. On failure *out is untouched; err->offset is the byte where reading
 * stopped, and the message says what was expected there. */
nt_status
nt_reader_load(const nt_alloc *alloc, nt_source *source, nt_snapshot **out,
               nt_error *err) NT_CHECKED;

#endif
