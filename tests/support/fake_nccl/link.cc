#include "tests/support/fake_nccl/link.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tests/support/fake_nccl/memory_use.h"
#include "tests/support/fake_nccl/violations.h"

namespace eplb::fake_nccl {
namespace {

enum class Moved { kSome, kNothingNow, kEnd };

// `count` grows by what moved.
Moved Count(ssize_t result, size_t& count) {
  if (result > 0) {
    count += static_cast<size_t>(result);
    return Moved::kSome;
  }
  const bool later = result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  return later ? Moved::kNothingNow : Moved::kEnd;
}

// Depends on the order.
uint64_t AddSize(uint64_t sizes, size_t bytes) { return (sizes ^ bytes) * 0x100000001b3U; }

}  // namespace

Link::Link(Descriptor socket, int32_t rank, int32_t peer)
    : socket_(std::move(socket)), rank_(rank), peer_(peer) {}

std::string Link::Named(const std::string& text) const {
  return "rank " + std::to_string(rank_) + ": rank " + std::to_string(peer_) + " " + text;
}

void Link::BeginGroup(const std::vector<Operation>& operations) {
  GroupShape shape{.number = num_groups_};
  for (const Operation& operation : operations) {
    if (operation.peer != peer_) continue;
    ++(operation.is_send ? shape.sends : shape.receives);
    uint64_t& sizes = operation.is_send ? shape.sent_sizes : shape.received_sizes;
    sizes = AddSize(sizes, operation.bytes);
    if (!operation.is_registered) continue;
    ++(operation.is_send ? shape.registered_sends : shape.registered_receives);
  }
  if (shape.sends + shape.receives == 0) return;
  ++num_groups_;
  own_shape_ = shape;
  Queue({.kind = Frame::kGroup, .shape = shape}, nullptr);
  (void)Write();  // before this end can find out that the shapes differ
}

void Link::Post(const Operation& operation) {
  if (operation.is_send) {
    sends_.push_back(&operation);
    MatchSends();
  } else {
    receives_.push_back(&operation);
    Queue({.kind = Frame::kPrepared, .bytes = operation.bytes}, nullptr);
  }
}

void Link::Queue(const Frame& frame, const Operation* payload) {
  outgoing_.push_back({.frame = frame, .payload = payload});
}

void Link::MatchSends() {
  for (; num_ready_ > 0 && num_matched_ < sends_.size(); --num_ready_) {
    const Operation* const send = sends_[num_matched_++];
    Queue({.kind = Frame::kData, .bytes = send->bytes}, send);
  }
}

short Link::wanted_events() const {
  return static_cast<short>(POLLIN | (outgoing_.empty() ? 0 : POLLOUT));
}

Outcome Link::CompareShapes() {
  if (!own_shape_ || peer_shapes_.empty()) return {};
  const GroupShape own = *own_shape_;
  const GroupShape theirs = peer_shapes_.front();
  own_shape_.reset();
  peer_shapes_.pop_front();
  if (own.number == theirs.number && own.sends == theirs.receives && own.receives == theirs.sends &&
      own.sent_sizes == theirs.received_sizes && own.received_sizes == theirs.sent_sizes) {
    if (own.registered_sends == theirs.registered_receives &&
        own.registered_receives == theirs.registered_sends) {
      return {};
    }
    Blame(Named("has registered its memory and this rank has not, or the reverse"));
    return {ncclInternalError, "memory is registered at one end only"};
  }
  return {ncclInvalidUsage, Named("has another group as number " + std::to_string(own.number) +
                                  " with this rank: other operations or other sizes")};
}

Outcome Link::Progress() {
  Outcome outcome = Read();
  if (outcome.result == ncclSuccess) outcome = CompareShapes();
  if (outcome.result == ncclSuccess && !ended_) outcome = Write();
  if (outcome.result == ncclSuccess && ended_ && !idle()) {
    return {ncclRemoteError, Named("has closed its connection")};
  }
  return outcome;
}

Outcome Link::CheckUnchanged(const Operation& send) const {
  if (send.hash == 0 || send.hash == HashOf(send.source, send.bytes)) return {};
  const std::string text =
      "what is sent to rank " + std::to_string(peer_) + " changed while it was in flight";
  Blame("rank " + std::to_string(rank_) + ": " + text);
  return {ncclInternalError, text};
}

Outcome Link::Write() {
  while (!outgoing_.empty()) {
    Outgoing& front = outgoing_.front();
    if (front.done == 0 && front.payload != nullptr) {
      if (Outcome changed = CheckUnchanged(*front.payload); changed.result != ncclSuccess) {
        return changed;
      }
    }
    const auto* frame = reinterpret_cast<const std::byte*>(&front.frame);
    const bool in_frame = front.done < sizeof(Frame);
    const std::byte* from =
        in_frame ? frame + front.done : front.payload->source + (front.done - sizeof(Frame));
    const size_t end =
        in_frame ? sizeof(Frame) : sizeof(Frame) + static_cast<size_t>(front.frame.bytes);
    const Moved moved =
        Count(send(socket_.get(), from, end - front.done, MSG_NOSIGNAL), front.done);
    if (moved == Moved::kNothingNow) return {};
    if (moved == Moved::kEnd) {
      ended_ = true;
      return {};
    }
    const size_t payload_bytes = front.payload != nullptr ? front.payload->bytes : 0;
    if (front.done < sizeof(Frame) + payload_bytes) continue;
    if (front.payload != nullptr) {
      if (Outcome changed = CheckUnchanged(*front.payload); changed.result != ncclSuccess) {
        return changed;
      }
      sends_.pop_front();
      --num_matched_;
    }
    outgoing_.pop_front();
  }
  return {};
}

Outcome Link::Read() {
  while (!ended_) {
    if (payload_left_ > 0) {
      const Operation& receive = *receives_.front();
      size_t done = receive.bytes - payload_left_;
      const Moved moved = Count(recv(socket_.get(), receive.target + done, payload_left_, 0), done);
      payload_left_ = receive.bytes - done;
      if (moved == Moved::kNothingNow) return {};
      ended_ = moved == Moved::kEnd;
      if (payload_left_ == 0) receives_.pop_front();
      continue;
    }
    const Moved moved = Count(
        recv(socket_.get(), head_.data() + head_done_, head_.size() - head_done_, 0), head_done_);
    if (moved == Moved::kNothingNow) return {};
    ended_ = moved == Moved::kEnd;
    if (head_done_ < head_.size()) continue;
    head_done_ = 0;
    Frame frame;
    std::memcpy(&frame, head_.data(), sizeof(frame));
    if (Outcome outcome = Take(frame); outcome.result != ncclSuccess) return outcome;
  }
  return {};
}

Outcome Link::Take(const Frame& frame) {
  switch (frame.kind) {
    case Frame::kGroup:
      peer_shapes_.push_back(frame.shape);
      return {};
    case Frame::kPrepared:
      ++num_ready_;
      MatchSends();
      return {};
    case Frame::kData:
      if (receives_.empty() || receives_.front()->bytes != frame.bytes) break;
      payload_left_ = frame.bytes;
      return {};
    default:
      break;
  }
  return {ncclInternalError, Named("has sent what was not asked for")};
}

}  // namespace eplb::fake_nccl
