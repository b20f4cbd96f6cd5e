// Transport, queue and staging of a rank, which the executor of a plan and the sums over replicas
// use.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/rows/transport.h"
#include "cuda/row_queue.h"

namespace eplb {

// A rank's transport, and the queue that reads the transport's staging: what brings rows here comes
// after the reads of what came before.

// Threads: one caller, but staging() and Interrupt are for any.
class RowCarrier {
 public:
  RowCarrier(std::unique_ptr<Transport> transport, std::unique_ptr<cuda::RowQueue> queue)
      : transport_(std::move(transport)), queue_(std::move(queue)) {}

  cuda::RowQueue& queue() { return *queue_; }
  std::span<std::byte> staging() const { return transport_->staging(); }
  std::string_view transport_name() const { return transport_->name(); }
  std::string_view transport_fallback_reason() const { return transport_->fallback_reason(); }

  // `batch` of the queue reads staging or writes rows that are sent next.
  void SetLastBatch(int64_t batch) { last_batch_ = batch; }
  // Until it has ended, for whoever needs staging or rows again. Its checksums, if it has any.
  // errors: as AwaitBatch.
  absl::StatusOr<std::vector<uint64_t>> AwaitLastBatch(absl::Time deadline);

  // Waits until the device has finished the present work of `stream`; later work of the queue
  // follows it. errors: see RowQueue::Follow and AwaitBatch; DeadlineExceeded reports that the GPU
  // is behind.
  absl::Status CatchUp(void* stream, absl::Time deadline);

  // Begins a post when the last batch has ended and, with moves.begin_by, the device has come to
  // the end of what moves.stream holds, which moves.deadline is put off for; what is added to the
  // queue afterwards comes after that. errors: as Transport::Post, RowQueue::Follow and AwaitBatch.
  absl::StatusOr<Ticket> Post(RowMoves moves);
  // Refuses a post, see Transport: this rank posts nothing under this id.
  void Refuse(uint64_t post_id) { transport_->Refuse(post_id); }
  // Until the post is done. errors: as Transport::Poll.
  absl::StatusOr<Progress> Await(Ticket ticket);

  // Ends every present and later wait in AwaitLastBatch, Post and Await with Cancelled within 0.1
  // s. For a caller on another thread.
  void Interrupt() { interrupted_ = true; }
  void Resume() { interrupted_ = false; }

  // Ends what is under way, after an error or where another rank had one. The queue works again
  // after an error that is over.
  void Settle();
  // See Transport; REQUIRES: after Settle.
  bool is_whole() const { return transport_->is_whole(); }
  void DropShared();
  // False when a write of ours may still land after all: this rank must not vote, its run
  // is over.
  bool may_vote() const { return may_vote_; }
  // Tells the peers that nothing comes from this rank any more. REQUIRES: Settle.
  void Leave() { transport_->Leave(); }

 private:
  // errors: as RowQueue::Follow and AwaitBatch.
  absl::Status Prepare(RowMoves& moves);
  // errors: as AwaitBatch; Cancelled.
  absl::Status AwaitUnlessInterrupted(int64_t batch, absl::Time deadline);

  const std::unique_ptr<Transport> transport_;
  const std::unique_ptr<cuda::RowQueue> queue_;
  std::optional<int64_t> last_batch_;  // which may not have ended
  bool may_vote_ = true;
  std::atomic<bool> interrupted_ = false;
};

}  // namespace eplb
