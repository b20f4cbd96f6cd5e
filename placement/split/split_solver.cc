#include "placement/split/split_solver.h"

#include <cstddef>

#include "placement/split/gpu_set.h"
#include "placement/split/split_scratch.h"

namespace eplb {
namespace {

// Solver for up to 64 * kWords GPUs.
template <int kWords>
class SolverOf final : public SplitSolver {
 public:
  void Prepare(const SplitLayer& layer) override {
    layer_ = layer;
    const SplitSizes sizes{layer.num_gpus, layer.num_parts, layer.num_replicated};
    const auto carve = [&](Carver& carver) {
      holders_ = carver.Take<GpuSet<kWords>>(layer.num_parts);
      scratch_ = CarveScratch<kWords, int64_t>(sizes, carver);
    };
    const auto numbers = AsIndex(CarvedBytes(carve)) / sizeof(int64_t);
    if (memory_.size() < numbers) memory_.resize(numbers);
    Carver carver(reinterpret_cast<std::byte*>(memory_.data()));
    carve(carver);
    FindHolders(layer_, holders_);
  }

  SplitPeak Solve(const int64_t* counts, const SplitMargins& margins,
                  const Answer& answer) override {
    SplitBody<kWords, int64_t, SplitLayer, OneThread> body(layer_, holders_, scratch_, OneThread());
    const LeastPeak<kWords> least =
        answer.quotas == nullptr ? body.FindPeak(counts, 0) : body.Solve(counts, margins);
    if (answer.quotas != nullptr) {
      WriteQuotas(layer_, counts, scratch_.part_tokens, answer.quotas, 0, 1);
      ShareQuotas(layer_, answer.quotas, 0, 1);
    }
    if (answer.tight_gpus != nullptr) {
      answer.tight_gpus->clear();
      least.tight.Visit([&](int32_t gpu) { answer.tight_gpus->push_back(gpu); });
    }
    return least.peak;
  }

 private:
  SplitLayer layer_;
  std::vector<int64_t> memory_;
  GpuSet<kWords>* holders_ = nullptr;
  SplitScratch<kWords, int64_t> scratch_;
};

}  // namespace

std::unique_ptr<SplitSolver> SplitSolver::Make(int32_t num_gpus) {
  static_assert(GpuSet<16>::kMaxGpus == kMaxGpus);
  if (num_gpus <= GpuSet<1>::kMaxGpus) return std::make_unique<SolverOf<1>>();
  if (num_gpus <= GpuSet<4>::kMaxGpus) return std::make_unique<SolverOf<4>>();
  return std::make_unique<SolverOf<16>>();
}

}  // namespace eplb
