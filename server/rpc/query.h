// Query: read-only answers about jobs.
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"

#include "server/rpc/gate.h"
#include "server/runner/reader.h"
#include "server/runner/runner.h"

#include "eplb/v1/query.grpc.pb.h"

namespace eplb {

struct QueryOptions {
  const Runner* runner = nullptr;  // all three outlive the service
  Gate* gate = nullptr;
  Reader* reader = nullptr;  // reads values that are not in memory
  std::string server_version = {};
  std::string store = {};   // see GetStatusResponse
  std::string leader = {};  // see GetStatusResponse
  absl::Time started;
};

std::unique_ptr<v1::Query::CallbackService> MakeQueryService(QueryOptions options);

}  // namespace eplb
