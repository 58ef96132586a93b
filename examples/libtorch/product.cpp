// Loads the library and calls an operator through PyTorch's dispatcher.
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <torch/torch.h>

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

  const torch::Device device = torch::cuda::is_available() ? torch::kCUDA : torch::kCPU;
  const at::Tensor a = torch::randn({100, 200}, device), b = torch::randn({200, 50}, device);
  const at::Tensor c = mm.call(a, b, "ladder");
  const double error = (c - torch::mm(a.to(torch::kDouble), b.to(torch::kDouble))).abs().max().item<double>();
  std::cout << "100 x 200 x 50 on " << device << ", largest error " << error << "\n";
  return error < 1e-4 ? 0 : 1;
}
