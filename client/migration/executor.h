// Carries a migration plan out on one rank: rows into staging, then, once the ranks have voted,
// staging into slots. In host memory or in that of a GPU: the transport and the queue say which.
#ifndef EPLB_CLIENT_MIGRATION_EXECUTOR_H_
#define EPLB_CLIENT_MIGRATION_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/migration/row_carrier.h"
#include "client/migration/transport.h"
#include "cuda/row_queue.h"
#include "placement/migration_plan.h"

namespace eplb {

enum class TensorRole { kWeight, kState };

// One tensor of one layer: local slot i of this GPU is the `row_bytes` bytes at base + i *
// row_stride.
struct ExpertTensor {
  std::string name;  // e.g. "layers.3.w1"; unique
  LayerId layer;
  TensorRole role = TensorRole::kWeight;
  void* base = nullptr;
  int32_t num_rows = 0;  // local slots of this GPU
  int64_t row_bytes = 0;
  int64_t row_stride = 0;  // >= row_bytes
};

// What the ranks must agree on about their tensors, as text: compared in the start vote.
std::string DescribeTensors(std::span<const ExpertTensor> tensors);

// kSome: a pipeline rank's layers, perhaps none.
enum class LayersHeld { kAll, kSome };

// Bytes of one expert of one layer by role, the same in every layer. errors: InvalidArgument naming
// the tensor: a name twice, a layer outside the topology or without the tensors other layers have,
// rows other than the GPU's slots, stride 0 or below row bytes, null base, sizes that differ
// between layers, rows that share bytes with another tensor's.
struct ExpertBytes {
  int64_t weight = 0;
  int64_t state = 0;
};
absl::StatusOr<ExpertBytes> CheckTensors(const Topology& topology, GpuId gpu,
                                         std::span<const ExpertTensor> tensors,
                                         LayersHeld held = LayersHeld::kAll);
// The layers that have tensors, rising.
std::vector<int32_t> LayersOf(std::span<const ExpertTensor> tensors);
// Of one tensor by itself.
absl::Status CheckTensor(const Topology& topology, GpuId gpu, const ExpertTensor& tensor);

struct ExecutorOptions {
  Topology topology;
  GpuId gpu;                      // of this rank
  std::vector<RankId> lane = {};  // [G], among which rows move, by GPU; empty: rank g is GPU g
  LayersHeld layers = LayersHeld::kAll;
  StateResidency state_residency = StateResidency::kEveryReplica;
  int32_t layers_per_chunk =
      4;  // with max_slots_per_gpu and the row sizes, what the arena must hold
};

// Staging that a rank needs: layers_per_chunk, or all that it has, * max slots of a GPU * bytes of
// an expert, each row rounded up to 64 bytes.
absl::StatusOr<int64_t> StagingBytes(const ExecutorOptions& options,
                                     std::span<const ExpertTensor> tensors);

// Threads: the training thread only, except CheckFits and migration_options, which read constants.
// The tensors must outlive it. Of a plan's layers without tensors here nothing is moved.
class Executor {
 public:
  // queue: copies rows where the tensors and the transport's arena lie. errors: as CheckTensors;
  // InvalidArgument when the transport's arena is too small.
  static absl::StatusOr<std::unique_ptr<Executor>> Make(const ExecutorOptions& options,
                                                        std::vector<ExpertTensor> tensors,
                                                        std::unique_ptr<Transport> transport,
                                                        std::unique_ptr<cuda::RowQueue> queue);
  ~Executor();

  // ok when the plan's rows for this rank fit into staging. errors: ResourceExhausted saying how
  // much is missing.
  absl::Status CheckFits(const MigrationPlan& plan) const;
  MigrationOptions migration_options() const;
  // What carries the rows now, and why that changed: "nccl" becomes "host" when it is given up.
  std::string_view transport_name() const;
  std::string_view transport_passed_over() const;
  std::span<const ExpertTensor> tensors() const;
  // For rows that are carried outside of a plan. REQUIRES: none is staged.
  RowCarrier& carrier();

  struct StageOptions {
    uint64_t post_id = 0;  // equal on all ranks, rising, e.g. the target version
    absl::Time deadline;
    void* stream = nullptr;  // cudaStream_t of expert work: what it holds comes first
  };
  struct Staged {
    int64_t sent_bytes = 0;
    int64_t received_bytes = 0;  // from other ranks
  };
  // Brings every row this rank needs into staging, checks checksums, and returns when none of our
  // own writes can still land, whatever the result; but see may_vote. Old slots are not touched.
  absl::StatusOr<Staged> Stage(const MigrationPlan& plan, const StageOptions& options);
  // False after a Stage that failed and could not end a write of its own, e.g. because the GPU does
  // not answer: this rank must not vote, its incarnation is over.
  bool may_vote() const;
  // Copies staging into the slots. On a GPU `stream` gets to its next work after the copies; the
  // call does not wait for them. REQUIRES: Stage returned OK and the second vote said yes. errors:
  // Internal from the GPU: the slots are in no known state, the incarnation is over.
  absl::Status Commit(void* stream = nullptr);
  // Forgets what is staged. REQUIRES: a vote with the result no, on all ranks, or the end of the
  // incarnation.
  void Discard();

 private:
  struct Impl;
  explicit Executor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace eplb

#endif  // EPLB_CLIENT_MIGRATION_EXECUTOR_H_
