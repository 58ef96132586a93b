// Launches a chosen row.
#pragma once
#include "backend.h"

namespace sgemm {

// Packs operands and launches a row on `context`, whose workspace has plan.bytes(). With `activated`, D receives the
// input of f, with the same bits as inside the kernel, and `activated` receives f of it.
void launch(const Backend& backend, const Kernel& kernel, Problem problem, const Plan& plan, Context context,
            const Matrix* activated = nullptr);

}  // namespace sgemm
