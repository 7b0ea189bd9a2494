/* SPDX-License-Identifier: Apache-2.0 */
/* The opcodes that are never obeyed, and what is said of them. */
#include <string.h>

#include "trace/nt_pickle.h"
#include "trace/nt_pickle_machine.h"

/* The name of an opcode that could name a class, call or reach outside. */
static const char *
refuse_name(uint8_t opcode)
{
    switch (opcode) {
    case 'c': return "GLOBAL";
    case 0x93: return "STACK_GLOBAL";
    case 'R': return "REDUCE";
    case 'b': return "BUILD";
    case 'i': return "INST";
    case 'o': return "OBJ";
    case 0x81: return "NEWOBJ";
    case 0x92: return "NEWOBJ_EX";
    case 0x82: return "EXT1";
    case 0x83: return "EXT2";
    case 0x84: return "EXT4";
    case 'P': return "PERSID";
    case 'Q': return "BINPERSID";
    case 0x97: return "NEXT_BUFFER";
    case 0x98: return "READONLY_BUFFER";
    case 'S': return "STRING";
    case 'T': return "BINSTRING";
    case 'U': return "SHORT_BINSTRING";
    default: return NULL;
    }
}

nt_status
nt_pickle_refuse(nt_pickle *p, uint8_t opcode)
{
    const char *name = refuse_name(opcode);
    if (name == NULL) {
        return nt_fail(p->err, NT_MALFORMED, p->opcode_offset,
                       "byte 0x%02x is not a pickle opcode", opcode);
    }
    if (strstr(name, "STRING") != NULL) {
        return nt_fail(p->err, NT_REFUSED, p->opcode_offset,
                       "opcode %s is refused: only Python 2 wrote it", name);
    }
    return nt_fail(p->err, NT_REFUSED, p->opcode_offset,
                   "opcode %s is refused: it could run code, and no snapshot needs it",
                   name);
}
