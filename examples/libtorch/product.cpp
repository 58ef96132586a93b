// Loads the library and calls an operator through PyTorch's dispatcher.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>

#include <iostream>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: product PATH/libtorch_sgemm.so\n";
    return 2;
  }
  if (!dlopen(argv[1], RTLD_NOW)) {  // registers the operators
    std::cerr << dlerror() << "\n";
    return 1;
  }
  using Mm = at::Tensor(const at::Tensor&, const at::Tensor&, std::string_view);
  const auto mm = c10::Dispatcher::singleton().findSchemaOrThrow("sgemm::mm", "").typed<Mm>();

  const at::Device device = at::hasCUDA() ? at::kCUDA : at::kCPU;
  const at::Tensor a = at::randn({100, 200}, device), b = at::randn({200, 50}, device);
  const at::Tensor c = mm.call(a, b, "ladder");
  const double error = (c - at::mm(a.to(at::kDouble), b.to(at::kDouble))).abs().max().item<double>();
  std::cout << "100 x 200 x 50 on " << device << ", largest error " << error << "\n";
  return error < 1e-4 ? 0 : 1;
}
