#include "placement/split/split_solver.h"

#include <cstddef>
#include <utility>

#include "placement/ids.h"
#include "placement/split/gpu_set.h"
#include "placement/split/slot_quotas.h"
#include "placement/split/split_holders.h"
#include "placement/split/split_scratch.h"

namespace eplb {
namespace {

// Solver for up to 64 * kWords GPUs.
template <int kWords>
class SolverOf final : public SplitSolver {
 public:
  explicit SolverOf(std::shared_ptr<Scratch> scratch) : scratch_(std::move(scratch)) {}

  void Prepare(const SplitLayer& layer) override {
    layer_ = layer;
    holders_.resize(AsIndex(layer.num_parts));
    neighbours_.resize(AsIndex(layer.num_gpus));
    FindHolders(layer_, holders_.data());
    FindNeighbours(layer_, holders_.data(), neighbours_.data());
    const auto numbers =
        AsIndex(CarvedBytes([this](Carver& carver) { (void)Carve(carver); })) / sizeof(int64_t);
    if (scratch_->size() < numbers) scratch_->resize(numbers);
  }

  SplitPeak Solve(const int64_t* counts, const SplitMargins& margins,
                  const Answer& answer) override {
    Carver carver(reinterpret_cast<std::byte*>(scratch_->data()));
    const SplitScratch<kWords, int64_t> scratch = Carve(carver);
    SplitBody<kWords, int64_t, SplitLayer, OneThread> body(
        layer_, holders_.data(), neighbours_.data(), scratch, OneThread());
    const LeastPeak<kWords> least =
        answer.quotas == nullptr ? body.FindPeak(counts, {}) : body.Solve(counts, margins);
    if (answer.quotas != nullptr) {
      WriteQuotas(layer_, counts, scratch.part_tokens, answer.quotas, 0, 1);
      ShareQuotas(layer_, answer.quotas, 0, 1);
    }
    if (answer.tight_gpus != nullptr) {
      answer.tight_gpus->clear();
      least.tight.Visit([&](int32_t gpu) { answer.tight_gpus->push_back(gpu); });
    }
    return least.peak;
  }

 private:
  SplitScratch<kWords, int64_t> Carve(Carver& carver) const {
    return CarveScratch<kWords, int64_t>({layer_.num_gpus, layer_.num_parts, layer_.num_replicated},
                                         carver);
  }

  SplitLayer layer_;
  std::vector<GpuSet<kWords>> holders_;
  std::vector<GpuSet<kWords>> neighbours_;
  std::shared_ptr<Scratch> scratch_;
};

}  // namespace

std::unique_ptr<SplitSolver> SplitSolver::Make(int32_t num_gpus, std::shared_ptr<Scratch> scratch) {
  static_assert(GpuSet<16>::kMaxGpus == kMaxGpus);
  if (scratch == nullptr) scratch = std::make_shared<Scratch>();
  if (num_gpus <= GpuSet<1>::kMaxGpus) return std::make_unique<SolverOf<1>>(std::move(scratch));
  if (num_gpus <= GpuSet<4>::kMaxGpus) return std::make_unique<SolverOf<4>>(std::move(scratch));
  return std::make_unique<SolverOf<16>>(std::move(scratch));
}

}  // namespace eplb
