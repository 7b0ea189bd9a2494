/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interpreter's own headers, for py_compat*.c alone, which include this before
 * anything else. They say where things lie; nothing is laid out here a second time.
 * 3.10 has all of it in its public headers.
 */
#ifndef PY_COMPAT_OBJECTS_INTERNAL_H
#define PY_COMPAT_OBJECTS_INTERNAL_H

#if !defined(Py_BUILD_CORE)
#define Py_BUILD_CORE 1 /* the internal headers refuse everybody else */
#endif
#include "compat/py_compat_objects.h"

#if PY_COMPAT_OBJECTS_KNOWN && PY_VERSION_HEX >= 0x030B0000
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wpedantic"
#include "internal/pycore_dict.h"
#include "internal/pycore_frame.h"
#include "internal/pycore_object.h"
#if PY_VERSION_HEX >= 0x030E0000
#include "internal/pycore_interpframe.h"
#include "internal/pycore_stackref.h"
#endif
#pragma GCC diagnostic pop
#endif

#include "frameobject.h"

#endif
