// Ties the lifetime of an object to a CUDA graph.
#pragma once
#include "../problem/problem.h"

namespace sgemm {

// Transfers `object` to the graph that `stream` is being captured into, and to each executable graph made of it. When
// the last of them is destroyed, a thread of CUDA's own calls `release(object)`; it must not call CUDA. Throws
// std::runtime_error if `stream` is not being captured or CUDA refuses; `release(object)` has been called by then.
void give_to_graph(Stream stream, void* object, void (*release)(void*));

}  // namespace sgemm
