/* SPDX-License-Identifier: Apache-2.0 */
#include "nt_gv_graph.h"

#include <gvc.h>

#include <string.h>

#ifdef NT_GV_BUILT_IN
/* Linked in with Graphviz (tools/release/graphviz_plugins.c); no others are loaded. */
extern lt_symlist_t nt_gv_plugins[];
#endif

struct nt_gv_graph {
    GVC_t *context; /* the process's */
    Agraph_t *whole;
    Agraph_t *frame; /* the whole where there is no frame */
    bool laid_out;
    char *rendered;           /* Graphviz's memory, or NULL */
    agusererrf outer_handler; /* whose turn it is again after us */
    agerrlevel_t outer_level;
};

/* The first error since the last graph was made; cgraph hands its handler nothing
 * to tell graphs apart. */
static char gv_message[200];

/*
 * The one context of this process, made for its first graph and never freed: the text
 * layout of some releases remembers a font of the last context, and looks at it again
 * when the next graph is drawn. NULL where none can be made.
 */
static GVC_t *
gv_process_context(void)
{
    static GVC_t *context;
    if (context == NULL) {
#ifdef NT_GV_BUILT_IN
        context = gvContextPlugins(nt_gv_plugins, 0);
#else
        context = gvContext();
#endif
    }
    return context;
}

static int
gv_keep_message(char *text)
{
    /* A message comes in pieces, the first of which is "Error". */
    const size_t used = strlen(gv_message);
    const size_t room = sizeof gv_message - 1 - used;
    const size_t length = strlen(text);
    const size_t taken = length < room ? length : room;
    memcpy(gv_message + used, text, taken);
    gv_message[used + taken] = '\0';
    return 0;
}

/* NT_IO with what Graphviz said, its line ends as spaces. */
static nt_status
gv_fail(nt_error *err, const char *what)
{
    for (char *at = gv_message; *at != '\0'; at++) {
        *at = *at == '\n' || *at == '\r' ? ' ' : *at;
    }
    return nt_fail(err, NT_IO, NT_NO_OFFSET, "%s: %s", what,
                   gv_message[0] == '\0' ? "Graphviz gave no reason" : gv_message);
}

/*
 * cgraph's own copy of a text, which is released with the graph. Some releases look at
 * the bytes before a value to see whether it is an HTML-like label: only in a copy that
 * was made here are those bytes theirs, and say that it is none.
 */
static char *
gv_copy(Agraph_t *graph, const char *text)
{
    return agstrdup(agroot(graph), (char *)text);
}

nt_status
nt_gv_new(bool framed, nt_gv_graph **out, nt_error *err)
{
    static char graph_name[] = "objects";
    static char frame_name[] = "cluster_frame"; /* the prefix makes it a cluster */
    const nt_alloc alloc = nt_alloc_system();
    nt_gv_graph *graph = nt_allocate(&alloc, sizeof *graph);
    if (graph == NULL) {
        return nt_fail_nomem(err);
    }
    *graph = (nt_gv_graph){
        .outer_handler = agseterrf(gv_keep_message),
        .outer_level = agseterr(AGERR), /* no warnings: they are about fonts */
    };
    gv_message[0] = '\0';
    graph->context = gv_process_context();
    graph->whole = graph->context == NULL ? NULL : agopen(graph_name, Agdirected, NULL);
    graph->frame = graph->whole;
    if (graph->whole != NULL && framed) {
        graph->frame = agsubg(graph->whole, frame_name, 1);
    }
    if (graph->frame == NULL) {
        nt_gv_free(graph);
        return gv_fail(err, "no graph could be made");
    }
    *out = graph;
    return NT_OK;
}

void
nt_gv_free(nt_gv_graph *graph)
{
    if (graph == NULL) {
        return;
    }
    if (graph->rendered != NULL) {
        gvFreeRenderData(graph->rendered);
    }
    if (graph->laid_out) {
        gvFreeLayout(graph->context, graph->whole);
    }
    if (graph->whole != NULL) {
        agclose(graph->whole);
    }
    agseterrf(graph->outer_handler);
    agseterr(graph->outer_level);
    const nt_alloc alloc = nt_alloc_system();
    nt_release(&alloc, graph, sizeof *graph);
}

nt_gv_item *
nt_gv_whole(nt_gv_graph *graph)
{
    return (nt_gv_item *)graph->whole;
}

nt_gv_item *
nt_gv_frame(nt_gv_graph *graph)
{
    return (nt_gv_item *)graph->frame;
}

nt_status
nt_gv_set_default(nt_gv_graph *graph, nt_gv_defaults which, const char *name,
                  const char *value, nt_error *err)
{
    char *copy = gv_copy(graph->whole, value);
    const int kind = which == NT_GV_NODES ? AGNODE : AGEDGE;
    if (copy == NULL || agattr(graph->whole, kind, (char *)name, copy) == NULL) {
        return gv_fail(err, "an attribute could not be set");
    }
    return NT_OK;
}

nt_status
nt_gv_set(nt_gv_item *item, const char *name, const char *value, nt_error *err)
{
    static char nothing[] = "";
    char *copy = gv_copy(agraphof(item), value);
    if (copy == NULL || agsafeset(item, (char *)name, copy, nothing) != 0) {
        return gv_fail(err, "an attribute could not be set");
    }
    char *kept = agget(item, (char *)name);
    if (kept == NULL || aghtmlstr(kept)) {
        return gv_fail(err, "a text was taken as markup");
    }
    return NT_OK;
}

nt_status
nt_gv_add_node(nt_gv_graph *graph, const char *name, nt_gv_item **out, nt_error *err)
{
    if (agnode(graph->whole, (char *)name, 0) != NULL) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET, "two nodes are named '%.40s'",
                       name);
    }
    Agnode_t *node = agnode(graph->frame, (char *)name, 1);
    if (node == NULL) {
        return gv_fail(err, "a node could not be made");
    }
    *out = (nt_gv_item *)node;
    return NT_OK;
}

nt_status
nt_gv_add_edge(nt_gv_graph *graph, const char *tail, const char *head, nt_gv_item **out,
               nt_error *err)
{
    Agnode_t *from = agnode(graph->frame, (char *)tail, 0);
    Agnode_t *to = agnode(graph->frame, (char *)head, 0);
    if (from == NULL || to == NULL) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET, "no node is named '%.40s'",
                       from == NULL ? tail : head);
    }
    Agedge_t *edge = agedge(graph->frame, from, to, NULL, 1);
    if (edge == NULL) {
        return gv_fail(err, "an edge could not be made");
    }
    *out = (nt_gv_item *)edge;
    return NT_OK;
}

/* gvRenderData's length is an unsigned int in older releases and a size_t in newer. */
typedef int (*gv_render_narrow)(GVC_t *, graph_t *, const char *, char **,
                                unsigned int *);
#define GV_IS_NARROW _Generic(gvRenderData, gv_render_narrow: true, default: false)
#define GV_LENGTH(narrow, wide)                                                        \
    _Generic(gvRenderData, gv_render_narrow: (narrow), default: (wide))

nt_status
nt_gv_render(nt_gv_graph *graph, const char *engine, const char *format,
             nt_gv_picture *out, nt_error *err)
{
    if (graph->laid_out) {
        return nt_fail(err, NT_ARGUMENT, NT_NO_OFFSET, "a graph is rendered once");
    }
    if (gvLayout(graph->context, graph->whole, engine) != 0) {
        return gv_fail(err, "the graph could not be laid out");
    }
    graph->laid_out = true;
    unsigned int narrow = 0;
    size_t wide = 0;
    char *bytes = NULL;
    if (gvRenderData(graph->context, graph->whole, format, &bytes,
                     GV_LENGTH(&narrow, &wide)) != 0 ||
        bytes == NULL) {
        return gv_fail(err, "the picture could not be made");
    }
    graph->rendered = bytes;
    const boxf box = GD_bb(graph->whole);
    *out = (nt_gv_picture){
        .bytes = bytes,
        .size = GV_IS_NARROW ? narrow : wide,
        .width = box.UR.x - box.LL.x,
        .height = box.UR.y - box.LL.y,
    };
    return NT_OK;
}
