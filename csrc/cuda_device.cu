#include "cuda_device.h"

#include <map>
#include <mutex>

#include "common/launch.h"

namespace sgemm {
namespace {

constexpr double kReachableBandwidth = 0.88;  // of the nominal one, by a copy on an H200

Device query(int index) {
  const auto attribute = [index](cudaDeviceAttr which) {
    int value = 0;
    cuda_backend::check(cudaDeviceGetAttribute(&value, which, index), "cudaDeviceGetAttribute");
    return value;
  };
  Device device;
  device.type = DeviceType::kCuda;
  device.arch = attribute(cudaDevAttrComputeCapabilityMajor) * 10 + attribute(cudaDevAttrComputeCapabilityMinor);
  device.sms = attribute(cudaDevAttrMultiProcessorCount);
  device.clock_ghz = attribute(cudaDevAttrClockRate) * 1e-6;  // from kHz
  const double bytes_a_clock = 2.0 * attribute(cudaDevAttrGlobalMemoryBusWidth) / 8;
  device.bandwidth_gbs = kReachableBandwidth * bytes_a_clock * attribute(cudaDevAttrMemoryClockRate) * 1e-6;
  device.l2_mb = attribute(cudaDevAttrL2CacheSize) / 1048576.0;
  return device;
}

}  // namespace

int current_cuda_device() {
  int index;
  cuda_backend::check(cudaGetDevice(&index), "cudaGetDevice");
  return index;
}

int cuda_device_count() {
  int count;
  cuda_backend::check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  return count;
}

const Device& cuda_device(int index) {
  static std::mutex mutex;
  static std::map<int, Device> devices;
  std::lock_guard<std::mutex> lock(mutex);
  auto found = devices.find(index);
  if (found == devices.end()) found = devices.emplace(index, query(index)).first;
  return found->second;
}

}  // namespace sgemm
