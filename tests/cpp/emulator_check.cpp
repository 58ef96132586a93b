// Runs the CPU build of every kernel, without torch, for AddressSanitizer and UndefinedBehaviorSanitizer.
//
//   emulator_check all SEED      each row of the table on edge shapes, layouts, alpha and beta
//   emulator_check broken SEED   kernels that lack a barrier: the emulator must expose them
//
// SEED orders the threads of a block between barriers; 0 leaves them in order.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "broken_kernels.h"
#include "table/dispatch.h"
#include "table/launch.h"
#include "emulator/emulator.h"

namespace {

using sgemm::ConstMatrix;
using sgemm::Kernel;
using sgemm::Matrix;
using sgemm::Problem;

// A matrix on the heap, exactly as large as it must be: the sanitizer sees the first byte beside it.
struct Storage {
  std::unique_ptr<float[]> data;
  ConstMatrix view;
};

// `rows` x `cols`, stored transposed or not, with `pad` unused elements a row. Integers, so that sums are exact; NaN
// between the rows, so that what must not be read is not.
Storage make_matrix(int64_t batch, int64_t rows, int64_t cols, bool transposed, int64_t pad, std::mt19937& random) {
  const int64_t lines = transposed ? cols : rows, length = transposed ? rows : cols, pitch = length + pad;
  const int64_t count = batch && lines && length ? ((batch * lines) - 1) * pitch + length : 0;
  Storage storage{std::make_unique<float[]>(count), {}};
  for (int64_t i = 0; i < count; ++i)
    storage.data[i] = i % pitch < length ? static_cast<float>(static_cast<int>(random() % 17) - 8) : NAN;
  storage.view = {storage.data.get(), rows, cols, transposed ? 1 : pitch, transposed ? pitch : 1, lines * pitch};
  return storage;
}

struct Case {
  int64_t batch, m, n, k;
  bool transpose_a, transpose_b, transpose_d;
  int64_t pad;
  float alpha, beta;
};

// The number of wrong elements of D.
int64_t wrong_elements(const sgemm::Backend& backend, const Kernel& kernel, const Case& x) {
  std::mt19937 random(7);
  const Storage a = make_matrix(x.batch, x.m, x.k, x.transpose_a, x.pad, random);
  const Storage b = make_matrix(x.batch, x.k, x.n, x.transpose_b, x.pad, random);
  const Storage d = make_matrix(x.batch, x.m, x.n, x.transpose_d, 0, random);
  const int64_t count = x.batch * x.m * x.n;
  std::vector<float> expected(d.data.get(), d.data.get() + count);
  for (int64_t s = 0; s < x.batch; ++s)
    for (int64_t i = 0; i < x.m; ++i)
      for (int64_t j = 0; j < x.n; ++j) {
        double sum = 0;
        if (x.alpha != 0)
          for (int64_t q = 0; q < x.k; ++q) sum += double(*a.view.matrix(s).at(i, q)) * *b.view.matrix(s).at(q, j);
        float& element = expected[d.view.matrix(s).at(i, j) - d.view.data];
        element = static_cast<float>(x.alpha * sum + (x.beta != 0 ? x.beta * element : 0));
      }
  if (x.beta == 0) std::fill_n(d.data.get(), count, NAN);

  Problem p{x.m, x.n, x.k, x.batch, x.alpha, x.beta, a.view, b.view, d.view, {}};
  p.d = {d.data.get(), x.m, x.n, d.view.row, d.view.col, d.view.batch};
  p = sgemm::simplified(p);
  const sgemm::Device cpu;
  const sgemm::Plan plan = sgemm::judge(kernel, p, cpu, kernel.name).plan;
  const std::unique_ptr<float[]> workspace(new float[plan.bytes() / 4]);
  sgemm::launch(backend, kernel, p, plan, {nullptr, &cpu, workspace.get()});
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; ++i) wrong += !(d.data[i] == expected[i]);
  return wrong;
}

// Shapes around the edges of the row's tile, in turn with each layout, padding, alpha and beta.
std::vector<Case> cases(const Kernel& kernel) {
  const int64_t m = kernel.bm, n = kernel.bn, k = kernel.bk;
  const int64_t shapes[][4] = {
      {1, 1, 1, 1},         {1, m, n, k},     {1, m + 1, n - 1, k + 1}, {2, m - 1, n + 1, 2 * k + 3}, {3, 5, 3, 2},
      {1, 2, n + 2, k + 4}, {1, m + 2, 3, 0}, {1, 17, 33, 41},          {2, m / 2 + 1, 7, 19}};
  // Sizes that the row takes, near its limit for those that it doesn't.
  const auto fit = [limit = kernel.max_size](int64_t size) { return limit && size > limit ? limit - size % 8 : size; };
  const float factors[][2] = {{1, 0}, {2, 1}, {-1, 0.5f}, {0, 3}, {0, 0}};
  std::vector<Case> out;
  int turn = 0;
  for (const auto& s : shapes)
    for (int layout = 0; layout < 8; ++layout, ++turn) {
      if (s[1] < 1 || s[2] < 1) continue;
      const auto& f = factors[turn % 5];
      out.push_back({s[0], fit(s[1]), fit(s[2]), fit(s[3]), bool(layout & 1), bool(layout & 2), bool(layout & 4),
                     turn % 3, f[0], f[1]});
    }
  return out;
}

int check_all() {
  const sgemm::Backend backend = sgemm::emulated_backend::backend();
  int failures = 0;
  for (const Kernel& kernel : backend.table) {
    if (!kernel.launch) continue;
    int64_t wrong = 0;
    const std::vector<Case> all = cases(kernel);
    for (const Case& x : all) wrong += wrong_elements(backend, kernel, x);
    std::printf("%-32s %zu cases, %lld wrong elements\n", kernel.name, all.size(), static_cast<long long>(wrong));
    failures += wrong != 0;
  }
  return failures;
}

// Returns true if a kernel's result differs from the sound one's, or if the emulator stops the kernel.
bool exposed(const Kernel& kernel) {
  try {
    return wrong_elements(sgemm::emulated_backend::backend(), kernel, {1, 64, 64, 96, false, false, false, 0, 1, 0}) !=
           0;
  } catch (const std::runtime_error& e) {
    std::printf("%s: %s\n", kernel.name, e.what());
    return true;
  }
}

int check_broken() {
  int failures = 0;
  for (const Kernel& kernel : sgemm::emulated_backend::broken_kernels()) {
    const bool sound = std::strcmp(kernel.name, "sound") == 0;
    const bool caught = exposed(kernel);
    std::printf("%-32s %s\n", kernel.name, caught ? "caught" : "passed");
    failures += caught == sound;
  }
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc == 3 ? argv[1] : "";
  if (mode != "all" && mode != "broken") {
    std::fprintf(stderr, "usage: emulator_check all|broken SEED\n");
    return 2;
  }
  emulator::set_shuffle(static_cast<unsigned>(std::strtoul(argv[2], nullptr, 10)));
  return (mode == "all" ? check_all() : check_broken()) ? 1 : 0;
}
