#include "tests/tools/bench/fleet.h"

#include <algorithm>
#include <deque>
#include <utility>

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>

namespace eplb::bench {
namespace {

constexpr const char* kMethod = "/eplb.v1.Balancer/Session";
constexpr int kMaxMessageBytes = 64 << 20;
constexpr size_t kStarting = 256;  // sessions whose first message is not written

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

// One stream. gRPC wants at most one write and one read at a time, and hands every operation back
// through the queue.
class Fleet::Session {
 public:
  Session(Fleet* fleet, int index, bool frozen) : fleet_(fleet), index_(index), frozen_(frozen) {}

  void Start(const std::shared_ptr<grpc::Channel>& channel, grpc::CompletionQueue* queue) {
    grpc::GenericStub stub(channel);
    call_ = stub.PrepareCall(&context_, kMethod, queue);
    call_->StartCall(&start_);
  }

  void Send(const grpc::ByteBuffer& message) {
    const std::lock_guard lock(mutex_);
    unsent_.push_back(message);
    WriteNext();
  }

  void HalfClose() {
    const std::lock_guard lock(mutex_);
    half_close_ = true;
    WriteNext();
  }

  void Cancel() { context_.TryCancel(); }

 private:
  friend class Fleet;
  enum class Kind { kStart, kRead, kWrite, kWritesDone, kFinish };
  struct Operation {
    Session* session;
    Kind kind;
  };

  void OnDone(Kind kind, bool ok) {
    switch (kind) {
      case Kind::kStart:
        if (!ok || frozen_) return Finish();
        call_->Read(&down_, &read_);
        return Begin();
      case Kind::kRead:
        if (!ok) return Finish();
        if (fleet_->hooks_.on_message) fleet_->hooks_.on_message(index_, down_);
        return call_->Read(&down_, &read_);
      case Kind::kWrite:
        return OnWritten(ok);
      case Kind::kWritesDone:
        return;
      case Kind::kFinish:
        if (!written_.exchange(true)) fleet_->StartNext();
        return fleet_->OnEnd(index_, status_);
    }
  }

  void Begin() {
    const std::lock_guard lock(mutex_);
    started_ = true;
    WriteNext();
  }

  void OnWritten(bool ok) {
    if (!written_.exchange(true)) fleet_->StartNext();
    if (ok && fleet_->hooks_.on_written) fleet_->hooks_.on_written(index_);
    const std::lock_guard lock(mutex_);
    writing_ = false;
    broken_ = broken_ || !ok;
    WriteNext();
  }

  // REQUIRES: the lock.
  void WriteNext() {
    if (!started_ || writing_ || broken_) return;
    if (!unsent_.empty()) {
      writing_ = true;
      up_ = std::move(unsent_.front());
      unsent_.pop_front();
      call_->Write(up_, &write_);
    } else if (half_close_) {
      broken_ = true;  // nothing can be written any more
      call_->WritesDone(&writes_done_);
    }
  }

  // Returns only after a cancel if the stream never reads.
  void Finish() {
    call_->Finish(&status_, &finish_);
    if (frozen_) Begin();
  }

  Fleet* const fleet_;
  const int index_;
  const bool frozen_;
  Operation start_{this, Kind::kStart};
  Operation read_{this, Kind::kRead};
  Operation write_{this, Kind::kWrite};
  Operation writes_done_{this, Kind::kWritesDone};
  Operation finish_{this, Kind::kFinish};
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  grpc::ByteBuffer down_;
  grpc::Status status_;
  std::atomic<bool> written_ = false;  // its first message, or it ended before
  std::mutex mutex_;                   // guards what follows, and the calls that write
  grpc::ByteBuffer up_;
  std::deque<grpc::ByteBuffer> unsent_;
  bool started_ = false;
  bool writing_ = false;
  bool half_close_ = false;
  bool broken_ = false;
};

Fleet::Fleet(FleetOptions options, FleetHooks hooks)
    : hooks_(std::move(hooks)), num_open_(options.num_sessions) {
  for (int i = 0; i < options.num_connections; ++i)
    channels_.push_back(MakeChannel(options.target));
  for (int i = 0; i < options.num_sessions; ++i) {
    sessions_.push_back(std::make_unique<Session>(this, i, options.frozen));
  }
  for (int i = 0; i < options.num_threads; ++i) threads_.emplace_back([this] { Serve(); });
  for (size_t i = 0; i < kStarting; ++i) StartNext();
}

Fleet::~Fleet() {
  const size_t started = std::min(num_started_.exchange(sessions_.size()), sessions_.size());
  {
    const std::lock_guard lock(mutex_);
    num_open_ -= static_cast<int>(sessions_.size() - started);
  }
  for (const auto& session : sessions_) session->Cancel();
  (void)WaitForEnds(absl::InfiniteDuration());  // a cancelled stream ends at once
  queue_.Shutdown();
  for (std::thread& thread : threads_) thread.join();
}

void Fleet::Send(int session, const grpc::ByteBuffer& message) {
  sessions_[static_cast<size_t>(session)]->Send(message);
}

void Fleet::HalfClose(int session) { sessions_[static_cast<size_t>(session)]->HalfClose(); }

bool Fleet::WaitForEnds(absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  const auto all_ended = [this] { return num_open_ == 0; };
  if (timeout == absl::InfiniteDuration()) {
    ended_.wait(lock, all_ended);
    return true;
  }
  return ended_.wait_for(lock, absl::ToChronoMilliseconds(timeout), all_ended);
}

int Fleet::num_open() const {
  const std::lock_guard lock(mutex_);
  return num_open_;
}

void Fleet::StartNext() {
  const size_t next = num_started_++;
  if (next < sessions_.size()) sessions_[next]->Start(channels_[next % channels_.size()], &queue_);
}

void Fleet::Serve() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
    const auto* operation = static_cast<Session::Operation*>(tag);
    operation->session->OnDone(operation->kind, ok);
  }
}

void Fleet::OnEnd(int session, const grpc::Status& status) {
  if (hooks_.on_end) hooks_.on_end(session, status);
  const std::lock_guard lock(mutex_);
  --num_open_;
  ended_.notify_all();
}

}  // namespace eplb::bench
