#include "launch.h"

#include "../problem/views.h"
#include "packing.h"

namespace sgemm {

void launch(const Backend& backend, const Kernel& kernel, Problem p, const Plan& plan, Context context,
            const Matrix* activated) {
  const Packing& copies = plan.packing;
  float* const memory = static_cast<float*>(context.workspace);
  const auto pack = [&](const ConstMatrix& x, ElementType elements, float* copy) {
    const int64_t count = matrices(x, p.batch);
    backend.pack(x, elements, packed_copy(x, count, copy), count, context);
  };
  if (copies.a) pack(turned(p.a, copies.turn_a), p.elements_a, memory);
  if (copies.b && !copies.shared) pack(turned(p.b, copies.turn_b), p.elements_b, memory + copies.floats_a);
  if (copies.a || copies.b) p = with_copies(kernel, p, copies, memory);
  if (context.workspace) context.workspace = static_cast<char*>(context.workspace) + copies.bytes();
  if (p.activation == Activation::kNone || (kernel.activates && !activated)) return kernel.launch(p, plan, context);
  Problem inner = p;
  inner.activation = kernel.activates ? Activation::kIdentity : Activation::kNone;
  kernel.launch(inner, plan, context);
  p.c = {p.d.data, p.d.rows, p.d.cols, p.d.row, p.d.col, p.d.batch};
  if (activated) p.d = *activated;
  backend.activate(p, context);
}

}  // namespace sgemm
