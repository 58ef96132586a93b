// Launches the rungs whose instructions only Hopper has.
#include "14_tma_producer.cuh"
#include "15_persistent.cuh"
#include "16_wgmma_tf32.cuh"
#include "17_wgmma_tf32x3.cuh"

namespace sgemm::cuda_backend {
namespace {

template <class T>
size_t shared_bytes(const Problem& problem, const Device& device) {
  size_t most = 0;
  for_each_mapped(problem, [&](const Problem& p) {
    most = std::max(most, stream_k_layout(deal_of<T>(p, device.sms), T::BM * T::BN).total);
  });
  return most;
}

template <class T, auto KERNEL>
void launch_persistent(const Problem& problem, const Context& context) {
  for_each_mapped(problem, [&](const Problem& p) {
    const StreamK deal = deal_of<T>(p, context.device->sms);
    const StreamKLayout at = stream_k_layout(deal, T::BM * T::BN);
    char* const workspace = static_cast<char*>(context.workspace);
    const SharedTiles shared = {deal, reinterpret_cast<float*>(workspace + at.parts),
                                reinterpret_cast<uint32_t*>(workspace + at.arrived)};
    if (deal.sharing)
      check(cudaMemsetAsync(shared.arrived, 0, 4 * deal.left(), static_cast<cudaStream_t>(context.stream)), "memset");
    const int blocks = std::min(context.device->sms, std::max(deal.whole, deal.sharing));
    launch_with_producer<T, KERNEL>(blocks, context, p, operand_maps<T>(p), shared);
  });
}

}  // namespace

void tma_producer::Rung::launch(const Problem& problem, const Context& context) {
  for_each_mapped(problem, [&](const Problem& p) {
    const int64_t blocks = ceil_div(p.m, BM) * ceil_div(p.n, BN) * p.batch;
    launch_with_producer<Rung, kernel<Rung>>(blocks, context, p, operand_maps<Rung>(p));
  });
}

size_t persistent::Rung::workspace(const Problem& p, const Device& device) { return shared_bytes<Rung>(p, device); }
void persistent::Rung::launch(const Problem& p, const Context& context) {
  launch_persistent<Rung, kernel<Rung>>(p, context);
}

size_t wgmma_tf32::Rung::workspace(const Problem& p, const Device& device) { return shared_bytes<Rung>(p, device); }
void wgmma_tf32::Rung::launch(const Problem& p, const Context& context) {
  launch_persistent<Rung, kernel<Rung>>(p, context);
}

size_t wgmma_tf32x3::Rung::workspace(const Problem& p, const Device& device) { return shared_bytes<Rung>(p, device); }
void wgmma_tf32x3::Rung::launch(const Problem& p, const Context& context) {
  launch_persistent<Rung, kernel<Rung>>(p, context);
}

}  // namespace sgemm::cuda_backend
