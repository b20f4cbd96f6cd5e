// Carries a migration plan out on one rank: rows into staging, then, once the ranks have voted,
// staging into slots. In host memory or in that of a GPU: the transport and the queue say which.
#ifndef EPLB_CLIENT_MIGRATION_EXECUTOR_H_
#define EPLB_CLIENT_MIGRATION_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/migration/transport.h"
#include "cuda/row_queue.h"
#include "placement/migration_plan.h"

namespace eplb {

// A rank's transport, and the queue that reads the transport's staging: what brings rows here comes
// after the reads of what came before.

// Threads: one caller, but staging() may be asked by any.
class RowCarrier {
 public:
  RowCarrier(std::unique_ptr<Transport> transport, std::unique_ptr<cuda::RowQueue> queue)
      : transport_(std::move(transport)), queue_(std::move(queue)) {}

  cuda::RowQueue& queue() { return *queue_; }
  std::span<std::byte> staging() { return transport_->staging(); }
  std::string_view transport_name() const { return transport_->name(); }
  std::string_view transport_fallback_reason() const { return transport_->fallback_reason(); }

  // `batch` of the queue reads staging or writes rows that are sent next.
  void SetLastBatch(int64_t batch) { last_batch_ = batch; }
  // Until it has ended, for whoever needs staging or rows again. Its checksums, if it has any.
  // errors: as AwaitBatch.
  absl::StatusOr<std::vector<uint64_t>> AwaitLastBatch(absl::Time deadline);

  // Begins a post when the last batch has ended; what is added to the queue afterwards comes after
  // what moves.stream holds. errors: as Transport::Post and AwaitBatch.
  absl::StatusOr<Ticket> Post(RowMoves moves);
  // Until the post is done. errors: as Transport::Poll.
  absl::StatusOr<Progress> Await(Ticket ticket);

  // Ends what is under way, after an error or where another rank had one.
  void Settle();
  // False when a write of ours may still land after all: this rank must not vote, its run
  // is over.
  bool may_vote() const { return may_vote_; }
  // Tells the peers that nothing comes from this rank any more. REQUIRES: Settle.
  void Leave() { transport_->Leave(); }

 private:
  const std::unique_ptr<Transport> transport_;
  const std::unique_ptr<cuda::RowQueue> queue_;
  std::optional<int64_t> last_batch_;  // which may not have ended
  bool may_vote_ = true;
};

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

// kSome: a pipeline stage's layers, perhaps none.
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
  GpuId gpu;                          // of this rank
  std::vector<RankId> ep_group = {};  // [G], among which rows move, by GPU; empty: rank g is GPU g
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
  std::string_view transport_fallback_reason() const;
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
  // not answer: this rank must not vote, its run is over.
  bool may_vote() const;
  // Copies staging into the slots. On a GPU `stream` gets to its next work after the copies; the
  // call does not wait for them. REQUIRES: Stage returned OK and the second vote said yes. errors:
  // Internal from the GPU: the slots are in no known state, the run is over.
  absl::Status Commit(void* stream = nullptr);
  // Forgets what is staged. REQUIRES: a vote with the result no, on all ranks, or the end of the
  // run.
  void Discard();

 private:
  struct Impl;
  explicit Executor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Per-expert tensors that are computed from others, such as cached scales: no row of theirs moves,
// a callback of the trainer computes them again where rows arrived.

struct DerivedTensor {
  std::string name;  // unique among all tensors
  LayerId layer;
  std::function<absl::Status(int32_t layer, std::span<const int32_t> local_slots)> rebuild;
};

// errors: InvalidArgument naming the tensor: a name that another one has, a layer outside the
// topology or without other tensors, no rebuild.
absl::Status CheckDerived(const Topology& topology, std::span<const ExpertTensor> tensors,
                          std::span<const DerivedTensor> derived);

// What the ranks must agree on, as DescribeTensors.
std::string DescribeDerived(std::span<const DerivedTensor> derived);

// The local slots of a GPU into which a plan writes, by layer, rising: their expert changes, or
// they become the primary and receive its state.
std::map<LayerId, std::vector<int32_t>> WrittenSlots(const MigrationPlan& plan,
                                                     const Topology& topology, GpuId gpu);

// Calls each `rebuild` whose layer has such slots: layers rising, within a layer as registered.
// errors: DataLoss naming the tensor, for the first one that fails; the others are not called.
absl::Status RebuildDerived(std::span<const DerivedTensor> derived, const MigrationPlan& plan,
                            const Topology& topology, GpuId gpu);

}  // namespace eplb

#endif  // EPLB_CLIENT_MIGRATION_EXECUTOR_H_
