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

void TmaProducer::launch(const Problem& problem, const Context& context) {
  for_each_mapped(problem, [&](const Problem& p) {
    const int64_t blocks = ceil_div(p.m, BM) * ceil_div(p.n, BN) * p.batch;
    launch_with_producer<TmaProducer, tma_producer<TmaProducer>>(blocks, context, p, operand_maps<TmaProducer>(p));
  });
}

size_t Persistent::workspace(const Problem& p, const Device& device) { return shared_bytes<Persistent>(p, device); }
void Persistent::launch(const Problem& p, const Context& context) {
  launch_persistent<Persistent, persistent<Persistent>>(p, context);
}

size_t WgmmaTf32::workspace(const Problem& p, const Device& device) { return shared_bytes<WgmmaTf32>(p, device); }
void WgmmaTf32::launch(const Problem& p, const Context& context) {
  launch_persistent<WgmmaTf32, wgmma_tf32<WgmmaTf32>>(p, context);
}

size_t WgmmaTf32x3::workspace(const Problem& p, const Device& device) { return shared_bytes<WgmmaTf32x3>(p, device); }
void WgmmaTf32x3::launch(const Problem& p, const Context& context) {
  launch_persistent<WgmmaTf32x3, wgmma_tf32x3<WgmmaTf32x3>>(p, context);
}

}  // namespace sgemm::cuda_backend
