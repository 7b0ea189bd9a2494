/* SPDX-License-Identifier: Apache-2.0 */
/* Private to nt_snapshot: what the rows of allocator_settings come to. */
#ifndef NT_SNAPSHOT_SETTINGS_H
#define NT_SNAPSHOT_SETTINGS_H

#include "trace/nt_snapshot.h"

/* The text of the environment variable first, then the parsed fields over it: the
 * fields are what the allocator had in force. A file that states none shows one by what
 * it has: segments that expand. */
nt_settings
nt_snapshot_read_settings(const nt_snapshot *snapshot);

#endif
