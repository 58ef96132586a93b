// The operators that torch_sgemm/dropin/overrides.py calls instead of aten's products. Each operator checks a call,
// counts it, and runs it if it is a float32 product. Other products go to PyTorch's own kernel: from here if that is
// sound, otherwise from Python, where errors keep their types.
#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>

#include "../table/namespace.h"
#include "boxed.h"
#include "checks.h"
#include "product.h"

namespace sgemm {
namespace {

using Reason = Refusal::Reason;

enum Op { kMm, kMmOut, kAddmm, kAddmmOut, kAddmmInPlace, kOfMatrices };  // the batched ones follow in the same order
constexpr const char* kOps[] = {"mm",  "mm.out",  "addmm",   "addmm.out",   "addmm_",
                                "bmm", "bmm.out", "baddbmm", "baddbmm.out", "baddbmm_"};
// The operators that compute them, for errors and profiles.
constexpr const char* kOperatorOf[] = {"mm",  "mm_out",  "addmm",   "addmm_out",   "gemm_",
                                       "bmm", "bmm_out", "baddbmm", "baddbmm_out", "gemm_"};

constexpr const char* kReasons[] = {"",
                                    "dtype",
                                    "layout",
                                    "device",
                                    "shape",
                                    "factor",
                                    "precision",
                                    "disabled",
                                    "output shape",
                                    "output shares storage",
                                    "output overlaps itself",
                                    "failed"};
static_assert(std::size(kReasons) == Refusal::kFailed + 1);

// Calls of all threads, counted without a lock. A call without a reason to refuse it counts as a hit.
std::atomic<int64_t> counts[std::size(kOps)][std::size(kReasons)];

struct Setting {
  std::string kernel;
  bool cpu, cuda;
  bool operator<(const Setting& other) const {
    return std::tie(kernel, cpu, cuda) < std::tie(other.kernel, other.cpu, other.cuda);
  }
};
std::atomic<const Setting*> current{nullptr};

// True if the overrides replace PyTorch's own kernels, on the CPU and on CUDA devices. A refused product is then
// computed here, and other Python threads run meanwhile. A kernel called from Python would hold the interpreter's lock.
std::atomic<bool> covers_pytorch[2];
void set_covers_pytorch(bool cuda, bool plain) { covers_pytorch[cuda] = plain; }

// Sets the requested kernel; "" for none. Old settings are kept, because a thread may still read one; they are few.
void set(const std::string& kernel, bool cpu, bool cuda) {
  static std::mutex mutex;
  static std::set<Setting>& kept = *new std::set<Setting>;
  const std::lock_guard<std::mutex> lock(mutex);
  current = kernel.empty() ? nullptr : &*kept.insert({kernel, cpu, cuda}).first;
}

// Returns the counts so far: {"mm": {"": 3, "dtype": 1}, ...}.
std::string read_counts() {
  std::string json;
  for (size_t op = 0; op < std::size(kOps); ++op) {
    std::string reasons;
    for (size_t reason = 0; reason < std::size(kReasons); ++reason)
      if (const int64_t count = counts[op][reason])
        reasons += (reasons.empty() ? "\"" : ", \"") + std::string(kReasons[reason]) + "\": " + std::to_string(count);
    if (!reasons.empty()) json += (json.empty() ? "\"" : ", \"") + std::string(kOps[op]) + "\": {" + reasons + "}";
  }
  return "{" + json + "}";
}

// Counts a call of the operator `name` with a factor that is not a real number. Python sends such a call to PyTorch's
// kernel.
void count_factor(const std::string& name) {
  const auto* const op = std::find(std::begin(kOps), std::end(kOps), name);
  if (op != std::end(kOps)) ++counts[op - std::begin(kOps)][Refusal::kFactor];
}

void reset_counts() {
  for (auto& of_op : counts)
    for (auto& count : of_op) count = 0;
}

// Returns true if PyTorch multiplies tensors of these dtypes, layouts and devices. PyTorch multiplies integers only on
// the CPU. It refuses integers in a sum, because a sum's factors arrive as floating-point numbers.
bool are_alike(std::initializer_list<const Tensor*> tensors, bool sum) {
  using torch::headeronly::ScalarType;
  const Tensor& first = **tensors.begin();
  const auto dtype = first.scalar_type();
  const auto is_one_of = [&](std::initializer_list<ScalarType> types) {
    return std::find(types.begin(), types.end(), dtype) != types.end();
  };
  if (!is_one_of({ScalarType::Float, ScalarType::Double, ScalarType::Half, ScalarType::BFloat16,
                  ScalarType::ComplexFloat, ScalarType::ComplexDouble}) &&
      (sum || first.is_cuda() ||
       !is_one_of({ScalarType::Byte, ScalarType::Char, ScalarType::Short, ScalarType::Int, ScalarType::Long})))
    return false;
  return std::all_of(tensors.begin(), tensors.end(), [&](const Tensor* x) {
    return x->scalar_type() == dtype && Strided::holds(*x) && OnDevice::holds(*x, first);
  });
}

// A call of an operator, the first reason to refuse it, and the setting at the time of the call.
struct Call {
  int op;  // an Op, or kOfMatrices more for the batched one
  const Tensor &a, &b;
  const Setting* setting;
  Reason reason = Refusal::kNone;
  bool pytorch_s = false;  // refused, and PyTorch's own kernel will compute it

  Call(Op of_matrices, int dims, const Tensor& a, const Tensor& b, bool ieee,
       std::initializer_list<const Tensor*> tensors)
      : op(of_matrices + (dims - 2) * kOfMatrices), a(a), b(b), setting(current.load()) {
    for (const Tensor* x : tensors) {
      require<Float32>(*x);
      require<Strided>(*x);
      require<OnDevice>(*x, a);
    }
    const bool covers = covers_pytorch[a.is_cuda()];
    pytorch_s = reason == Refusal::kDtype && covers && are_alike(tensors, of_matrices != kMm && of_matrices != kMmOut);
    require<Dimensions>(a, dims);
    require<Dimensions>(b, dims);
    require<RowsForColumnsOf>(b, a);
    require<BatchOf>(b, a);
    if (reason) return;
    if (!ieee)
      reason = Refusal::kPrecision;
    else if (!(setting && (a.is_cuda() ? setting->cuda : setting->cpu)))
      reason = Refusal::kDisabled;
    pytorch_s = reason && covers;
  }

  template <class Condition, class... Args>
  void require(const Args&... args) {
    if ((reason && !pytorch_s) || Condition::holds(args...)) return;
    pytorch_s = false;
    if (!reason) reason = Condition::kReason;
  }

  void require_addend(const Tensor& c, double beta, double alpha) {
    require<Broadcasts>(c, a, b);
    require<InRange>(beta);
    require<InRange>(alpha);
  }
  void require_output(const Tensor& out) {
    require<ProductShape>(out, a, b);
    require<OtherStorage>(out, a);
    require<OtherStorage>(out, b);
    require<Writable>(out);
  }

  // Counts the call and runs it into `out`, or into a new tensor `made`. Returns false, or leaves `made` empty, if
  // Python has to call PyTorch's own kernel. That includes failures in PyTorch, such as no memory for a result, whose
  // error PyTorch's kernel will raise again.
  bool run(const Tensor* c, double beta, double alpha, const Tensor* out, std::optional<Tensor>* made = nullptr) const {
    Reason outcome = reason;
    bool done = false;
    if (!reason || pytorch_s) {
      try {
        if (made) out = &made->emplace(reason ? empty_like_product(a, b) : new_output(a, b));
        if (!reason) {
          try {
            product(kOperatorOf[op], *out, c, a, b, alpha, beta, setting->kernel);
            done = true;
          } catch (const NoMemory&) {  // for a workspace: `out` is unwritten, and PyTorch's kernel takes over
            if (setting->kernel == kBatchInvariant) throw;
            outcome = Refusal::kFailed;
          }
        }
        if (!done) aten_product(*out, c, a, b, alpha, beta);
        done = true;
      } catch (const TorchError& failure) {
        if (!reason) outcome = Refusal::kFailed;
        if (!reason && setting->kernel == kBatchInvariant) {  // PyTorch's kernel would give other bits
          ++counts[op][outcome];
          throw std::runtime_error(failure.what());
        }
      }
    }
    ++counts[op][outcome];  // not reached if no row takes it or a launch failed: those throw
    if (!done && made) made->reset();
    return done;
  }
};

// Overrides for matrices (DIMS = 2) and for batches of matrices (3). `ieee`: PyTorch's settings ask for float32
// products.
template <int DIMS>
struct Override {
  static std::optional<Tensor> mm(const Tensor& a, const Tensor& b, bool ieee) {
    const Call call(kMm, DIMS, a, b, ieee, {&a, &b});
    std::optional<Tensor> out;
    call.run(nullptr, 0, 1, nullptr, &out);
    return out;
  }

  static bool mm_out(const Tensor& a, const Tensor& b, bool ieee, const Tensor& out) {
    Call call(kMmOut, DIMS, a, b, ieee, {&a, &b, &out});
    call.require_output(out);
    return call.run(nullptr, 0, 1, &out);
  }

  static std::optional<Tensor> addmm(const Tensor& c, const Tensor& a, const Tensor& b, double beta, double alpha,
                                     bool ieee) {
    Call call(kAddmm, DIMS, a, b, ieee, {&a, &b, &c});
    call.require_addend(c, beta, alpha);
    std::optional<Tensor> out;
    call.run(&c, beta, alpha, nullptr, &out);
    return out;
  }

  static bool addmm_out(const Tensor& c, const Tensor& a, const Tensor& b, double beta, double alpha, bool ieee,
                        const Tensor& out) {
    Call call(kAddmmOut, DIMS, a, b, ieee, {&a, &b, &c, &out});
    call.require_addend(c, beta, alpha);
    call.require_output(out);
    call.require<OtherStorageOrSame>(out, c);
    return call.run(&c, beta, alpha, &out);
  }

  static bool addmm_in_place(const Tensor& c, const Tensor& a, const Tensor& b, double beta, double alpha, bool ieee) {
    Call call(kAddmmInPlace, DIMS, a, b, ieee, {&a, &b, &c});
    call.require_addend(c, beta, alpha);
    call.require_output(c);
    return call.run(&c, beta, alpha, &c);
  }
};

// Products of named tensors, which PyTorch had up to 2.14. PyTorch does not pass them to Python kernels, such as the
// overrides, but to kernels at the dispatch key "Named". PyTorch's own kernel below the dispatcher finds and checks the
// result's names.
template <int DIMS>
struct Named {
  static Tensor product(const Tensor& a, const Tensor& b) {
    check_named(a, b, a);
    return product_out(a, b, empty_like_product(a, b));
  }
  static Tensor product_out(const Tensor& a, const Tensor& b, const Tensor& out) {
    check_named(a, b, out);
    aten_product(out, nullptr, a, b, 1, 0);
    return out;
  }

 private:
  // PyTorch's kernels below the dispatcher don't check devices, and their errors have no words here.
  static void check_named(const Tensor& a, const Tensor& b, const Tensor& out) {
    const bool fit = Dimensions::holds(a, DIMS) && Dimensions::holds(b, DIMS) && RowsForColumnsOf::holds(b, a) &&
                     BatchOf::holds(b, a);
    if (fit && (a.is_cpu() || a.is_cuda()) && OnDevice::holds(b, a) && OnDevice::holds(out, a)) return;
    throw std::runtime_error(
        "torch_sgemm.enable: a product of tensors with names, " + describe(a) + " and " + describe(b) + "; accepted: " +
        (fit ? "all on one CPU or CUDA device" : "shapes that can be multiplied") + ", or tensor.rename(None)");
  }
};

// Lets products of named tensors pass the overrides, or no longer.
void let_names_pass(bool wanted) {
  using torch::stable::detail::StableLibrary;
  static std::mutex mutex;
  static std::unique_ptr<StableLibrary>& library = *new std::unique_ptr<StableLibrary>;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!wanted) return library.reset();
  if (library) return;
  library.reset(new StableLibrary(StableLibrary::Kind::IMPL, "aten", "Named", __FILE__, __LINE__));
  library->impl("mm", SGEMM_BOX(&Named<2>::product));
  library->impl("mm.out", SGEMM_BOX(&Named<2>::product_out));
  library->impl("bmm", SGEMM_BOX(&Named<3>::product));
  library->impl("bmm.out", SGEMM_BOX(&Named<3>::product_out));
}

void register_overrides(torch::stable::detail::StableLibrary& m) {
  m.impl("_override_mm", SGEMM_BOX(&Override<2>::mm));
  m.impl("_override_mm_out", SGEMM_BOX(&Override<2>::mm_out));
  m.impl("_override_addmm", SGEMM_BOX(&Override<2>::addmm));
  m.impl("_override_addmm_out", SGEMM_BOX(&Override<2>::addmm_out));
  m.impl("_override_addmm_", SGEMM_BOX(&Override<2>::addmm_in_place));
  m.impl("_override_bmm", SGEMM_BOX(&Override<3>::mm));
  m.impl("_override_bmm_out", SGEMM_BOX(&Override<3>::mm_out));
  m.impl("_override_baddbmm", SGEMM_BOX(&Override<3>::addmm));
  m.impl("_override_baddbmm_out", SGEMM_BOX(&Override<3>::addmm_out));
  m.impl("_override_baddbmm_", SGEMM_BOX(&Override<3>::addmm_in_place));
}

}  // namespace
}  // namespace sgemm

STABLE_TORCH_LIBRARY_FRAGMENT(SGEMM_NAMESPACE, m) {
  for (const std::string b : {"", "b"}) {
    const std::string mm = "_override_" + b + "mm", addmm = "_override_" + (b + "add") + (b + "mm");
    const std::string operands = "Tensor a, Tensor b", sum = "(Tensor c, " + operands + ", float beta, float alpha, ";
    m.def((mm + "(" + operands + ", bool ieee) -> Tensor?").c_str());
    m.def((mm + "_out(" + operands + ", bool ieee, *, Tensor(a!) out) -> bool").c_str());
    m.def((addmm + sum + "bool ieee) -> Tensor?").c_str());
    m.def((addmm + "_out" + sum + "bool ieee, *, Tensor(a!) out) -> bool").c_str());
    m.def((addmm + "_(Tensor(a!) c, " + operands + ", float beta, float alpha, bool ieee) -> bool").c_str());
  }
  m.def("_override_set(str kernel, bool cpu, bool cuda) -> ()");
  m.def("_override_covers_pytorch(bool cuda, bool plain) -> ()");
  m.def("_override_names(bool wanted) -> ()");
  m.def("_override_count_factor(str name) -> ()");
  m.def("_override_counts() -> str");
  m.def("_override_reset() -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(SGEMM_NAMESPACE, CPU, m) { sgemm::register_overrides(m); }

STABLE_TORCH_LIBRARY_IMPL(SGEMM_NAMESPACE, CUDA, m) { sgemm::register_overrides(m); }

STABLE_TORCH_LIBRARY_IMPL(SGEMM_NAMESPACE, CompositeExplicitAutograd, m) {
  m.impl("_override_set", SGEMM_BOX(&sgemm::set));
  m.impl("_override_covers_pytorch", SGEMM_BOX(&sgemm::set_covers_pytorch));
  m.impl("_override_names", SGEMM_BOX(&sgemm::let_names_pass));
  m.impl("_override_count_factor", SGEMM_BOX(&sgemm::count_factor));
  m.impl("_override_counts", SGEMM_BOX(&sgemm::read_counts));
  m.impl("_override_reset", SGEMM_BOX(&sgemm::reset_counts));
}
