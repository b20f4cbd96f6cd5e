// Carries a migration plan out on one rank: rows into staging, then, once the ranks have voted,
// staging into slots. In host memory or in that of a GPU: the transport and the queue say which.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/rows/expert_tensors.h"
#include "client/rows/row_carrier.h"
#include "client/rows/staging.h"
#include "client/rows/transport.h"
#include "cuda/row_queue.h"
#include "placement/migration_plan.h"

namespace eplb {

struct ExecutorOptions {
  Topology topology;
  GpuId gpu;                          // GPU of this rank
  std::vector<RankId> ep_group = {};  // [G], among which rows move, by GPU; empty: rank g is GPU g
  LayersHeld layers = LayersHeld::kAll;
  // Layers that staging has room for. 0: kLeastStagingLayers, or as many more as fit into
  // kSmallStagingBytes.
  int32_t layers_per_chunk = 0;
};

inline constexpr int32_t kLeastStagingLayers = 4;
inline constexpr int64_t kSmallStagingBytes = int64_t{256} << 20;

// Returns the layers that staging has room for, by layers_per_chunk. tensors: of this rank, valid.
int32_t StagingLayers(const ExecutorOptions& options, std::span<const ExpertTensor> tensors);

// Staging that a rank needs: StagingLayers, or all that it has, * max slots of a GPU * bytes of an
// expert, each row rounded up to 64 bytes.
absl::StatusOr<int64_t> StagingBytes(const ExecutorOptions& options,
                                     std::span<const ExpertTensor> tensors);

// Threads: the training thread only, except CheckFits and tensors, which read constants,
// Interrupt, and FinishStage, whose caller is the only one meanwhile.
// The tensors must outlive it. Of a plan's layers without tensors here nothing is moved.
class Executor {
 public:
  // queue: copies rows where the tensors and the transport's arena lie. errors: as CheckTensors;
  // InvalidArgument when the transport's arena is too small.
  static absl::StatusOr<std::unique_ptr<Executor>> Make(const ExecutorOptions& options,
                                                        std::vector<ExpertTensor> tensors,
                                                        std::unique_ptr<Transport> transport,
                                                        std::unique_ptr<cuda::RowQueue> queue);
  // ok when the plan's rows for this rank fit into staging. errors: ResourceExhausted saying how
  // much is missing.
  absl::Status CheckFits(const MigrationPlan& plan) const;
  // Name of the transport that carries the rows now, and why it changed: "nccl" becomes "host"
  // after NCCL fails.
  std::string_view transport_name() const { return carrier_.transport_name(); }
  std::string_view transport_fallback_reason() const {
    return carrier_.transport_fallback_reason();
  }
  std::span<const ExpertTensor> tensors() const { return tensors_; }
  // For rows that are carried outside of a plan. REQUIRES: none is staged.
  RowCarrier& carrier() { return carrier_; }

  struct StageOptions {
    uint64_t post_id = 0;  // equal on all ranks, rising, e.g. the target version
    absl::Time deadline;
    absl::Time begin_by = absl::InfinitePast();  // see RowMoves::begin_by
    void* stream = nullptr;  // cudaStream_t of expert work: what it holds comes first
    bool timed = false;      // Staged says when what was moved
    bool keep_sums = false;  // Staged says what was read; BeginStage's always does
  };
  struct Staged {
    int64_t sent_bytes = 0;
    int64_t received_bytes = 0;  // from other ranks
    // With `timed`, MonotonicNow(): rows between slots of this GPU, and rows by round.
    absl::Time local_began = absl::InfinitePast();  // InfinitePast: there were none
    absl::Time local_ended = absl::InfinitePast();
    std::vector<RoundTimes> rounds = {};
    // With `keep_sums`: as Progress', and the checksums of rows between slots of this GPU.
    std::vector<SentPiece> sent = {};
    std::vector<uint64_t> local_sums = {};
  };
  // Brings every row this rank needs into staging, checks checksums, and returns when none of our
  // own writes can still land, whatever the result; but see may_vote. Old slots are not touched.
  absl::StatusOr<Staged> Stage(const MigrationPlan& plan, const StageOptions& options);

  // Stage in three calls, for rows that nothing changes until the third. What Stage says of errors,
  // writes and may_vote holds for FinishStage.
  // BeginStage checks the plan, and what options.stream holds now comes before the rows. It waits
  // for no other rank. The plan must outlive FinishStage. errors: the peers were told not to wait
  // for this rank, and FinishStage is not called.
  absl::Status BeginStage(const MigrationPlan& plan, const StageOptions& options);
  // The rest, on any thread, while the GPU works on other streams and may capture graphs.
  // REQUIRES: BeginStage returned OK.
  absl::StatusOr<Staged> FinishStage();
  // FinishStage of another thread returns soon, with Cancelled if it was not through.
  void Interrupt() { carrier_.Interrupt(); }
  // It has returned, and what comes next is interrupted no more.
  void Resume() { carrier_.Resume(); }
  // Checks, after the present work of `stream`, that no row that this rank sent or copied has
  // changed since it was read, so that the staged copies are current. Waits for the GPU. cost: one
  // read of these rows. REQUIRES: FinishStage returned OK. errors: DataLoss naming tensor, layer
  // and slot of the first row that changed; Internal and DeadlineExceeded from the GPU;
  // FailedPrecondition for the stream.
  absl::Status CheckSources(void* stream, absl::Time deadline);

  // False after a Stage that failed and could not end a write of its own, e.g. because the GPU does
  // not answer: this rank must not vote, its run is over.
  bool may_vote() const { return carrier_.may_vote(); }
  // False after a Stage that ended this rank's part of what the ranks share: the second vote brings
  // it to all of them.
  bool is_whole() const { return carrier_.is_whole(); }
  // Copies staging into the slots. On a GPU `stream` gets to its next work after the copies; the
  // call does not wait for them, but after an error of one call, when it tries once more. REQUIRES:
  // Stage returned OK and the second vote said yes. errors: Internal from the GPU: the slots are in
  // no known state, the run is over.
  absl::Status Commit(void* stream = nullptr);
  // Forgets what is staged. all_whole: what the ranks share is whole on every rank, and is kept.
  // REQUIRES: a vote with the result no, on all ranks, or the end of the run.
  void Discard(bool all_whole = false);

 private:
  // Bytes of a live row, and their checksum when they were read.
  struct ReadBytes {
    const ExpertTensor* tensor = nullptr;
    SlotId slot;
    std::span<const std::byte> bytes;
    uint64_t checksum = 0;
  };
  // From BeginStage to FinishStage.
  struct Begun {
    StagingLayout layout;
    StageOptions options;
  };
  // Destination of a staged row at Commit.
  struct Arrival {
    std::span<const std::byte> staged;
    std::vector<std::span<std::byte>> rows;
  };

  Executor(const ExecutorOptions& options, std::vector<ExpertTensor> tensors,
           std::unique_ptr<Transport> transport, std::unique_ptr<cuda::RowQueue> queue);

  RankId RankOf(GpuId gpu) const;
  absl::Status CheckBytes(const StagingLayout& layout, GpuId gpu) const;
  std::span<std::byte> StagedBytes(const StagedRow& row);
  std::span<const std::byte> SourceBytes(const StagedRow& row) const;
  RowMoves MovesOf(const StagingLayout& layout, const StageOptions& stage) const;
  // Adds a batch, once those before have ended.
  absl::StatusOr<std::vector<uint64_t>> CopyAndWait(std::span<const cuda::RowCopy> rows,
                                                    absl::Time deadline);
  // Rows between slots of this GPU; they too are overwritten only at Commit.
  // returns: their checksums, in the layout's order.
  absl::StatusOr<std::vector<uint64_t>> StageLocal(const StagingLayout& layout,
                                                   absl::Time deadline);
  // errors: FailedPrecondition while a plan is staged; as CheckFits, for any GPU.
  absl::StatusOr<StagingLayout> LayOut(const MigrationPlan& plan) const;
  absl::StatusOr<Staged> MoveRows(const StagingLayout& layout, const StageOptions& stage);
  // Keeps what MoveRows staged, or ends what is under way after its error, which is returned.
  absl::Status Hold(const StagingLayout& layout, const absl::Status& moved);
  void RememberArrivals(const StagingLayout& layout);
  // ---- executor_ahead.cc ----
  ReadBytes ReadOf(const StagedRow& row) const;
  // Returns the reads of the live rows. errors: Internal if the reads do not cover every byte.
  absl::StatusOr<std::vector<ReadBytes>> ReadsOf(const StagingLayout& layout,
                                                 const Staged& staged) const;
  absl::Status CheckReads(std::span<const ReadBytes> reads, absl::Time deadline);
  absl::Status CopyIntoSlots(std::span<const cuda::RowCopy> copies, void* stream);

  const ExecutorOptions options_;
  const std::vector<ExpertTensor> tensors_;
  const TensorsByLayer by_layer_;
  RowCarrier carrier_;
  const int32_t first_slot_;
  bool holds_plan_ = false;
  std::vector<Arrival> arrivals_;  // arrivals of the staged plan
  std::optional<Begun> begun_;
  std::vector<ReadBytes> reads_;  // bytes that the last FinishStage read
};

}  // namespace eplb
