#include "placement/split/split_solver.h"

#include <cstddef>

#include "placement/ids.h"
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
    const auto numbers = AsIndex(ScratchBytesOf(sizes, kWords)) / sizeof(int64_t);
    if (memory_.size() < numbers) memory_.resize(numbers);
    scratch_ = CarveScratch<kWords>(sizes, reinterpret_cast<std::byte*>(memory_.data()));
    Body(layer_, scratch_, OneThread()).FindHolders();
  }

  SplitPeak Solve(const int64_t* counts, int64_t slack, const Answer& answer) override {
    Body body(layer_, scratch_, OneThread());
    const LeastPeak<kWords> least =
        answer.quotas == nullptr ? body.FindPeak(counts) : body.Solve(counts, slack);
    if (answer.quotas != nullptr) body.WriteQuotas(answer.quotas);
    if (answer.tight_gpus != nullptr) {
      answer.tight_gpus->clear();
      least.tight.Visit([&](int32_t gpu) { answer.tight_gpus->push_back(gpu); });
    }
    return least.peak;
  }

 private:
  using Body = SplitBody<kWords, OneThread>;

  SplitLayer layer_;
  std::vector<int64_t> memory_;
  SplitScratch<kWords> scratch_;
};

}  // namespace

std::unique_ptr<SplitSolver> SplitSolver::Make(int32_t num_gpus) {
  static_assert(GpuSet<16>::kMaxGpus == kMaxGpus);
  switch (NumSetWords(num_gpus)) {
    case 1:
      return std::make_unique<SolverOf<1>>();
    case 4:
      return std::make_unique<SolverOf<4>>();
    default:
      return std::make_unique<SolverOf<16>>();
  }
}

}  // namespace eplb
