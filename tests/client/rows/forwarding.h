// A queue, a transport and a control channel that forward every call, for tests that change some
// calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "client/rows/control/control_channel.h"
#include "client/rows/transport.h"
#include "cuda/row_queue.h"

namespace eplb {

class ForwardingQueue : public cuda::RowQueue {
 public:
  using Rows = std::span<const cuda::RowCopy>;
  explicit ForwardingQueue(std::unique_ptr<cuda::RowQueue> queue) : queue_(std::move(queue)) {}

  absl::StatusOr<cuda::RowBuffer> Allocate(int64_t num_bytes) override {
    return queue_->Allocate(num_bytes);
  }
  absl::StatusOr<cuda::RowBuffer> AllocatePinned(int64_t num_bytes) override {
    return queue_->AllocatePinned(num_bytes);
  }
  absl::StatusOr<cuda::RowBuffer> Pin(std::span<std::byte> memory) override {
    return queue_->Pin(memory);
  }
  absl::Status CheckStream(void* stream) override { return queue_->CheckStream(stream); }
  absl::Status Follow(void* stream) override { return queue_->Follow(stream); }
  absl::Status LetFollow(void* stream) override { return queue_->LetFollow(stream); }
  absl::StatusOr<int64_t> Copy(Rows rows) override { return queue_->Copy(rows); }
  absl::StatusOr<int64_t> CopyUnsummed(Rows rows) override { return queue_->CopyUnsummed(rows); }
  absl::StatusOr<int64_t> Transfer(Rows rows) override { return queue_->Transfer(rows); }
  absl::StatusOr<int64_t> Add(Rows rows, cuda::ElementType type) override {
    return queue_->Add(rows, type);
  }
  absl::StatusOr<int64_t> Square(Rows rows, cuda::ElementType type) override {
    return queue_->Square(rows, type);
  }
  absl::StatusOr<int64_t> Mark() override { return queue_->Mark(); }
  absl::StatusOr<bool> Ended(int64_t batch) override { return queue_->Ended(batch); }
  std::vector<uint64_t> TakeChecksums(int64_t batch) override {
    return queue_->TakeChecksums(batch);
  }
  absl::Status Drain(absl::Time deadline) override { return queue_->Drain(deadline); }
  void AllowCaptures() override { queue_->AllowCaptures(); }
  void* stream() override { return queue_->stream(); }

 private:
  const std::unique_ptr<cuda::RowQueue> queue_;
};

class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  std::string_view name() const override { return inner_->name(); }
  std::span<std::byte> staging() override { return inner_->staging(); }
  absl::StatusOr<Ticket> Post(RowMoves moves) override { return inner_->Post(std::move(moves)); }
  absl::StatusOr<Progress> Poll(Ticket ticket, absl::Duration max_wait) override {
    return inner_->Poll(ticket, max_wait);
  }
  void Refuse(uint64_t post_id) override { inner_->Refuse(post_id); }
  absl::Status Abort() override { return inner_->Abort(); }
  bool is_whole() const override { return inner_->is_whole(); }
  absl::Status DropShared() override { return inner_->DropShared(); }
  void Leave() override { inner_->Leave(); }

 private:
  const std::unique_ptr<Transport> inner_;
};

class ForwardingControl : public ControlChannel {
 public:
  explicit ForwardingControl(std::unique_ptr<ControlChannel> inner) : inner_(std::move(inner)) {}

  RankId rank() const override { return inner_->rank(); }
  int32_t world_size() const override { return inner_->world_size(); }
  absl::StatusOr<std::vector<int64_t>> AllReduceMin(std::span<const int64_t> values,
                                                    absl::Duration timeout) override {
    return inner_->AllReduceMin(values, timeout);
  }
  absl::Status Barrier(absl::Duration timeout) override { return inner_->Barrier(timeout); }
  absl::Status Farewell(absl::Duration timeout) override { return inner_->Farewell(timeout); }

 private:
  const std::unique_ptr<ControlChannel> inner_;
};

}  // namespace eplb
