/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A drawing by Graphviz: a directed graph made with cgraph's calls, laid out and
 * rendered by gvc into memory.
 *
 * For a process that does nothing else: cgraph keeps state for the whole process and
 * ends it when memory runs out, and a layout has no bound on its time. One drawing
 * exists at a time, on one thread. All text is UTF-8 and is copied; none of it is ever
 * taken as an HTML-like label, whatever it begins with.
 */
#ifndef NT_GV_GRAPH_H
#define NT_GV_GRAPH_H

#include "base/nt_base.h"

typedef struct nt_gv_graph nt_gv_graph;

/* What attributes are set on: a node, an edge, the graph or its frame. It belongs to
 * its graph. */
typedef struct nt_gv_item nt_gv_item;

/* What all nodes or all edges have unless their own attributes say otherwise. */
typedef enum nt_gv_defaults { NT_GV_NODES, NT_GV_EDGES } nt_gv_defaults;

/* A rendered picture; valid until the graph is freed. */
typedef struct nt_gv_picture {
    const char *bytes;
    size_t size;
    double width;  /* of the layout, in points (1/72 inch) */
    double height; /* in points */
} nt_gv_picture;

/*
 * An empty graph. With `framed`, all nodes lie in a cluster, the frame, which has
 * a label of its own. cgraph's messages are kept for errors until the graph is freed.
 */
nt_status
nt_gv_new(bool framed, nt_gv_graph **out, nt_error *err) NT_CHECKED;

/* NULL is fine. */
void
nt_gv_free(nt_gv_graph *graph);

/* The graph itself. */
nt_gv_item *
nt_gv_whole(nt_gv_graph *graph);

/* The frame; the graph itself where it has none. */
nt_gv_item *
nt_gv_frame(nt_gv_graph *graph);

/* Comes before the nodes and edges that it is about. */
nt_status
nt_gv_set_default(nt_gv_graph *graph, nt_gv_defaults which, const char *name,
                  const char *value, nt_error *err) NT_CHECKED;

/* Sets an attribute. A backslash escape in a label means what Graphviz says. */
nt_status
nt_gv_set(nt_gv_item *item, const char *name, const char *value,
          nt_error *err) NT_CHECKED;

/* NT_ARGUMENT if there is a node of that name. */
nt_status
nt_gv_add_node(nt_gv_graph *graph, const char *name, nt_gv_item **out,
               nt_error *err) NT_CHECKED;

/* NT_ARGUMENT if there is no node `tail` or `head`. Edges may run in parallel. */
nt_status
nt_gv_add_edge(nt_gv_graph *graph, const char *tail, const char *head, nt_gv_item **out,
               nt_error *err) NT_CHECKED;

/*
 * Lays the graph out with `engine` ("dot", "sfdp") and renders it as `format` ("svg",
 * "png"). Once a graph. NT_IO, with what Graphviz said, where it can't.
 */
nt_status
nt_gv_render(nt_gv_graph *graph, const char *engine, const char *format,
             nt_gv_picture *out, nt_error *err) NT_CHECKED;

#endif
