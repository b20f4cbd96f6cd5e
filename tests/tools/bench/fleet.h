// Many sessions of one process, as cheap as gRPC allows: bytes in, bytes out, nothing is parsed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include <grpcpp/channel.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

namespace eplb::bench {

struct FleetOptions {
  std::string target;
  int num_sessions = 1;
  int num_connections = 1;  // sessions are spread over them in turn
  int num_threads = 2;
  bool frozen = false;  // no session ever reads
};

// Called on the fleet's threads; the calls of one session never overlap. Any may be empty.
struct FleetHooks {
  std::function<void(int session, const grpc::ByteBuffer& message)> on_message = {};
  std::function<void(int session)> on_written = {};
  std::function<void(int session, const grpc::Status& status)> on_end = {};
};

// Opens streams of /eplb.v1.Balancer/Session, a few at a time: a daemon that must accept thousands
// of connections at once ends those whose first message is late. Threads: Send and HalfClose from
// any. Memory: what the caller has queued with Send and gRPC has not yet taken.
class Fleet {
 public:
  Fleet(FleetOptions options, FleetHooks hooks);
  // Cancels the streams that are still open.
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  void Send(int session, const grpc::ByteBuffer& message);
  // After the messages that were sent before it.
  void HalfClose(int session);
  // False when some stream is still open after `timeout`.
  bool WaitForEnds(absl::Duration timeout);
  int num_open() const;
  int num_sessions() const { return static_cast<int>(sessions_.size()); }

 private:
  class Session;

  void Serve();
  void StartNext();
  void OnEnd(int session, const grpc::Status& status);

  const FleetHooks hooks_;
  mutable std::mutex mutex_;  // guards num_open_
  std::condition_variable ended_;
  int num_open_;
  grpc::CompletionQueue queue_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::atomic<size_t> num_started_ = 0;  // may count beyond the sessions
  std::vector<std::thread> threads_;
};

}  // namespace eplb::bench
