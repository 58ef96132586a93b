#include "cuda_device.h"

#include <cstdio>
#include <future>
#include <map>
#include <mutex>

#include "../gpu/launch.h"
#include "models.h"
#include "tensor_rate.h"

namespace sgemm {
namespace {

// A probe kernel, compiled for the same architectures as all kernels except those of sm_90a.
__global__ void compiled() {}

// Returns the architecture that the code loaded for the current device was compiled for; 0 if there is none. It may be
// lower than the device's: PTX for a lower one also runs, but without later features such as clusters.
int code_arch() {
  cudaFuncAttributes attributes;
  const cudaError_t status = cudaFuncGetAttributes(&attributes, compiled);
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    cudaGetLastError();
    return 0;
  }
  cuda_backend::check(status, "cudaFuncGetAttributes");
  return attributes.ptxVersion;
}

int code_arch(int index) {
  if (current_cuda_device() == index) return code_arch();
  // Asks in a separate thread, because switching back to a device that is still unused would create a context there.
  const auto ask = [index] {
    cuda_backend::check(cudaSetDevice(index), "cudaSetDevice");
    return code_arch();
  };
  return std::async(std::launch::async, ask).get();
}

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
  device.code_arch = code_arch(index);
  device.clock_ghz = attribute(cudaDevAttrClockRate) * 1e-6;  // from kHz
  const double bytes_a_clock = 2.0 * attribute(cudaDevAttrGlobalMemoryBusWidth) / 8;
  device.bandwidth_gbs = models().choice.reachable * bytes_a_clock * attribute(cudaDevAttrMemoryClockRate) * 1e-6;
  device.l2_mb = attribute(cudaDevAttrL2CacheSize) / 1048576.0;
  cudaDeviceProp properties;
  cuda_backend::check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  std::snprintf(device.name, sizeof device.name, "%s", properties.name);
  device.tensor_rate = tensor_rate(device.name);
  // Devices, partitions and emulations may not report these.
  if (device.clock_ghz <= 0) device.clock_ghz = kH200.clock_ghz;
  if (device.bandwidth_gbs <= 0) device.bandwidth_gbs = kH200.bandwidth_gbs;
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
