// The calls of etcd that the daemon needs: each has a deadline, and goes on with the next member
// when one does not answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include "base/tls_files.h"

#include "etcd/etcd.pb.h"

namespace eplb::etcd {

namespace pb = ::etcdserverpb;

struct ClientOptions {
  std::vector<std::string> endpoints;  // addresses of the members, at least one: "HOST:PORT"
  wire::TlsFiles tls = {};
  absl::Duration timeout = absl::Seconds(1);  // shortest deadline of one call to one member
};

// errors of every call: Unavailable or DeadlineExceeded when no member answers before `deadline`,
// ResourceExhausted when etcd's space is used up, and those of etcd; each begins with the member's
// address. Deadlines are on MonotonicNow()'s clock. threads: safe.
class Client {
 public:
  // errors: InvalidArgument naming the file of `tls` at fault.
  static absl::StatusOr<std::unique_ptr<Client>> Make(ClientOptions options);

  // Reads the state after all writes that were answered before. If a member does not answer, asks
  // the next one.
  absl::StatusOr<pb::RangeResponse> Range(const pb::RangeRequest& request, absl::Time deadline);
  // One attempt at one member: after an error the transaction may have happened, or may happen yet.
  absl::StatusOr<pb::TxnResponse> Txn(const pb::TxnRequest& request, absl::Time deadline);
  absl::StatusOr<pb::LeaseGrantResponse> Grant(int64_t ttl_seconds, absl::Time deadline);
  absl::Status Revoke(int64_t lease, absl::Time deadline);
  // The seconds that the lease now lasts; 0: there is none any more. Asks the next member as Range.
  absl::StatusOr<int64_t> KeepAlive(int64_t lease, absl::Time deadline);
  // Returns OK once the key was deleted in a revision above `since`, DeadlineExceeded at the
  // deadline.
  absl::Status WaitForDelete(const std::string& key, int64_t since, absl::Time deadline);

  // Ends the calls that wait for etcd now with Cancelled.
  void CancelCalls();

  // Longest wait for one member's answer: options.timeout, and up to 8 times that while etcd is
  // slow.
  absl::Duration timeout() const;
  // Time that a call takes, averaged over the newest small ones over a connection that was there. 0
  // before the first of them.
  absl::Duration round_trip() const;
  // Returns one sentence about what is wrong with etcd, as of the newest calls; empty if nothing is
  // wrong. Never waits.
  std::string Trouble() const;

 private:
  using Call =
      std::function<absl::Status(const std::shared_ptr<grpc::Channel>&, grpc::ClientContext*)>;
  // Only a small call takes one round trip: a large one carries many bytes, and kEvent waits for an
  // event.
  enum class Size { kSmall, kLarge, kEvent };
  explicit Client(ClientOptions options)
      : options_(std::move(options)), channels_(options_.endpoints.size()) {}
  // Returns the channel to a member, made anew after a failure. A failed channel connects again
  // only while a call waits for it.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> ChannelTo(size_t member);
  // Goes on with the next member. is_dead: the connection to the failed one is closed.
  void GoOn(size_t failed, bool is_dead);
  // At the member in use, within `timeout` and `deadline`; a failure makes the next member the one
  // in use.
  absl::Status Once(absl::Time deadline, absl::Duration timeout, Size size, const Call& call);
  // Asks member after member, each at most twice; ends after CancelCalls.
  absl::Status Repeat(absl::Time deadline, Size size, const Call& call);
  int64_t cancels() const;
  // Keeps the outcome of a call for Trouble and timeout; returns it.
  absl::Status Noted(absl::Status status);
  void NoteAnswer(absl::Duration took, bool is_measured);

  const ClientOptions options_;
  mutable std::mutex mutex_;                              // guards what follows
  std::vector<std::shared_ptr<grpc::Channel>> channels_;  // by member, null: not connected
  size_t current_ = 0;                                    // the member in use
  absl::Duration round_trip_;                             // see round_trip()
  int patience_ = 1;                                      // factor of the timeout: 1, 2, 4 or 8
  std::set<grpc::ClientContext*> calls_;                  // calls that wait for etcd
  int64_t cancels_ = 0;                                   // calls of CancelCalls
  absl::Status failure_;      // failure of the newest call to any member
  absl::Time failing_since_;  // by the wall clock, unless failure_ is OK
};

}  // namespace eplb::etcd
