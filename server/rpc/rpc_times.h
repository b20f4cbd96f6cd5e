// How long calls that are no stream took, by method and code; what peers wait for besides streams.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include <grpcpp/support/server_interceptor.h>

#include "server/core/values/buckets.h"

namespace eplb {

// threads: safe. Bounded: methods of our services and "other", times the codes of gRPC.
class RpcTimes {
 public:
  struct Series {
    std::string method;  // "Query/GetJob"; "other": health, and names that no service has
    std::string code;    // "NOT_FOUND"
    core::Buckets seconds;
  };

  // For ServerBuilder::experimental().SetInterceptorCreators: observes each call, from its start to
  // its status. Streams are left alone; calls whose message is above the size limit are ended by
  // gRPC before any interceptor sees them. This object outlives the server.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeObserver();

  void Observe(const std::string& method, absl::StatusCode code, double seconds);
  // Only what was called, in the order of the names.
  std::vector<Series> Take() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, absl::StatusCode>, core::Buckets> seconds_;  // guarded by mutex_
};

}  // namespace eplb
