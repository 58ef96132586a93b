// What a CUDA graph keeps until it is gone.
#pragma once
#include "../problem/problem.h"

namespace sgemm {

// The graph that `stream` is being captured into owns `object` from now on, and so does each executable graph made of
// it. When the last of them is destroyed, `release(object)` is called on a thread of CUDA's own, where CUDA may not be
// called. Throws std::runtime_error where nothing is captured or CUDA refuses; `release(object)` has been called then.
void give_to_graph(Stream stream, void* object, void (*release)(void*));

}  // namespace sgemm
