// SPDX-License-Identifier: Apache-2.0
// Whose a file is, what a frame says of its part of a program, and which line stands for a
// stack. The patterns come from neutracer's own modules as data (rules.py): trace/origins.py,
// trace/roles.py and trace/places.py say why.

const compiled = (value) => {
  if (value && typeof value === "object" && "pattern" in value) return new RegExp(value.pattern, `${value.flags}u`);
  if (value && typeof value === "object" && !Array.isArray(value)) {
    return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, compiled(part)]));
  }
  return value;
};

const startsWith = (text, parts) => parts.some((part) => text.startsWith(part));
const endsWith = (text, parts) => parts.some((part) => text.endsWith(part));

export const baseName = (file) => file.slice(Math.max(file.lastIndexOf("/"), file.lastIndexOf("\\")) + 1);

// By what `rules` says: originOf(file), says(file, name), seen and placeOf for stacks. `libraries`
// are folders of installed packages, beside those that are called so.
export const makeOrigins = (rules, libraries = []) => {
  const o = compiled(rules.origins);
  const r = compiled(rules.roles);
  const p = compiled(rules.places);
  const { role: roles, bits } = rules;

  const asInstalled = (file) => {
    const folder = libraries.map((one) => `${one.replace(/\/+$/, "")}/`).find((one) => file.startsWith(one));
    return folder ? `/site-packages/${file.slice(folder.length)}` : file;
  };
  const isPythons = (path) => {
    if (o.standard.test(path)) return true;
    const windows = o.windows_lib.exec(path);
    if (windows && o.modules.includes(windows[1])) return true;
    const [folder, name] = [path.slice(0, path.lastIndexOf("/")), path.slice(path.lastIndexOf("/") + 1)];
    return !name.replace(/\.exe$/, "").includes(".") && endsWith(folder, ["/bin", "/Scripts"]);
  };
  const installed = (path, found) => {
    const owner = found[1].replace(/\.py$/, "");
    if (o.of_torch.includes(owner)) return { owner: "torch", package: "" };
    if (owner === "neutracer" || endsWith(path, o.wrappers)) return { owner: "plumbing", package: "" };
    return { owner: "library", package: found.index + found[0].length === path.length ? "" : owner };
  };
  const judged = (file) => {
    const path = `/${file.replaceAll("\\", "/").replace(/^\/+/, "")}`;
    if (endsWith(path, o.native_endings) || path === "/" || path === "/??") return { owner: "native", package: "" };
    if (path.startsWith("/<") && !o.generated.test(path)) {
      return { owner: o.typed.test(path) ? "own" : "plumbing", package: "" };
    }
    const found = [...path.matchAll(new RegExp(o.installed.source, `${o.installed.flags}g`))];
    if (found.length) return installed(path, found[found.length - 1]);
    if (o.generated.test(path) || o.torch_tree.test(path)) return { owner: "torch", package: "" };
    return { owner: isPythons(path) || o.our_tree.test(path) ? "plumbing" : "own", package: "" };
  };
  const known = new Map();
  const originOf = (file) => {
    let found = known.get(file);
    if (!found) known.set(file, found = judged(asInstalled(file)));
    return found;
  };

  const inOptim = (path, name) => {
    if (name === "zero_grad") return roles.ZERO_GRAD;
    if (path === "optim/swa_utils.py") return name === "__init__" ? roles.BUILD : roles.OPTIMIZER;
    if (path === "optim/lr_scheduler.py") return roles.USER;
    return name === "_init_group" || name === "__init__" ? roles.STATE : roles.OPTIMIZER;
  };
  const inFsdp = (path, name) => {
    if (r.reduces.test(name) && !name.includes("pre_")) {
      return path.includes("collectives") || name.includes("_grad") ? roles.REDUCE : roles.USER;
    }
    if (r.gathers.test(name)) return roles.GATHER;
    return r.shards.test(name) ? roles.BUILD : roles.USER;
  };
  const inAutograd = (path, name) => {
    if (path === "autograd/__init__.py") return name === "_make_grads" ? roles.SEED : roles.USER;
    if (path === "autograd/graph.py") return name === "_engine_run_backward" ? roles.BACKWARD : roles.USER;
    if (path === "utils/checkpoint.py") return r.recompute.includes(name) ? roles.BACKWARD : roles.USER;
    return roles.USER;
  };
  const inTorch = (path, name) => {
    if (startsWith(path, ["optim/", "distributed/optim/"])) return inOptim(path, name);
    if (startsWith(path, ["amp/grad_scaler", "cuda/amp/grad_scaler", "nn/utils/clip_grad"])) return roles.SCALER;
    if (path === "nn/modules/module.py") {
      if (r.calls.includes(name)) return roles.MODULE;
      if (name === "zero_grad") return roles.ZERO_GRAD;
      return r.builders.includes(name) ? roles.BUILD : roles.USER;
    }
    if (path === "nn/parallel/distributed.py") {
      return name === "_ddp_init_helper" || name === "_pre_forward" ? roles.BUCKET : roles.USER;
    }
    if (path.startsWith("distributed/fsdp/")) return inFsdp(path, name);
    if (path.startsWith("nn/") && (name === "__init__" || name === "__deepcopy__" || path === "nn/init.py")) {
      return roles.BUILD;
    }
    return inAutograd(path, name);
  };
  const outside = (path, name) => {
    if (r.cache_name.test(name) || r.caches.test(path)) return roles.CACHE;
    return r.loaders.test(path) && r.loading.test(name) ? roles.BUILD : roles.USER;
  };
  // A role, and the bits that the core has for more that a frame says.
  const says = (file, name) => {
    if (startsWith(name, r.engine)) return roles.BACKWARD;
    if (startsWith(name, r.reducer)) return roles.BUCKET;
    if (r.workspace.test(name)) return roles.WORKSPACE;
    const path = `/${asInstalled(file).replaceAll("\\", "/")}`;
    const { owner } = originOf(file);
    const reverse = name === "backward" ? bits.REVERSE : 0;
    if (owner !== "torch") {
      const isOutside = (owner === "own" || owner === "library") && !r.comprehension.test(name);
      const made = name === "__init__" ? bits.INIT : 0;
      return outside(path, name) | (isOutside ? bits.OUTSIDE : 0) | made | reverse;
    }
    const inside = path.slice(path.lastIndexOf("/torch/") < 0 ? 0 : path.lastIndexOf("/torch/") + 7);
    let said = bits.TORCH | inTorch(inside, name);
    if (inside === "autograd/function.py" && name === "apply") said |= bits.APPLIES;
    if (name === "step" && inside.startsWith("optim/")) said |= bits.ALGORITHM;
    return said | reverse;
  };

  // What the frames of a stack amount to, from the outermost up to one of them.
  const nothing = { own: null, library: null, package: "", torch: null, native: null, node: null };
  const furtherIn = (seen, frame) => {
    const { owner, package: from } = frame.line > 0 || frame.file ? originOf(frame.file) : { owner: "native" };
    if (owner === "native" || frame.line <= 0) {
      const node = p.node.exec(frame.name);
      if (node) return { ...seen, node: { ...frame, name: node[1] } };
      const isHelper = startsWith(frame.name, p.plumbing) || p.helper.test(frame.name);
      return isHelper ? seen : { ...seen, native: frame };
    }
    if (owner === "own") return { ...nothing, own: frame };
    if (owner === "library") return { ...seen, library: frame, package: from };
    return owner === "torch" ? { ...seen, torch: frame } : seen;
  };
  // The same of generated code: the line of the model that it stands for, with its node's name.
  const inner = (seen, frame) => {
    if (!frame.fx?.model.length) return furtherIn(seen, frame);
    const found = frame.fx.model.reduce(furtherIn, seen);
    if (!found.own || !frame.fx.node) return found;
    return { ...found, own: { ...found.own, name: `${frame.fx.node} in ${found.own.name}` } };
  };
  const short = (name) => name.replaceAll("(anonymous namespace)::", "").split("(")[0] || name;
  // Function, file with its package, line, and who called it from the program.
  const placeOf = ({ own, library, package: from, torch, native, node }) => {
    if (library) {
      const called = own ? `${baseName(own.file)}:${own.line}` : "";
      return [library.name, from ? `${from} ${baseName(library.file)}` : baseName(library.file), library.line, called];
    }
    const frame = own || node || native || torch;
    if (!frame) return [rules.unknown_place, "", 0, ""];
    return [frame === own ? frame.name : short(frame.name), baseName(frame.file), frame.line, ""];
  };
  return { originOf, says, nothing, furtherIn, inner, placeOf };
};
