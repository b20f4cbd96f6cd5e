// Questions of a serving engine to the daemons: where its experts should be.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/tls_files.h"
#include "placement/load.h"
#include "placement/placement.h"

namespace eplb {

// Daemons to ask, and how long.
struct PlanningDaemons {
  std::string endpoint;  // "A,B", or a source of base/endpoint_source.h
  wire::TlsFiles tls = {};
  absl::Duration timeout;
};

struct PlanQuestion {
  std::string job;
  std::string run_id;  // one life of the engine in one shape
  std::string replaces_run_id =
      {};                    // run that ended when the engine changed its shape; empty: none
  std::string engine = {};   // name and version
  int64_t number = 0;        // from 1, rising within a run
  int64_t expert_bytes = 0;  // weights of an expert of a layer; 0: not known
  Load load;                 // counts since the last question
  Placement current;
};

struct PlanAnswer {
  std::optional<Placement> placement;  // absent: the current placement stays
  int64_t version = 0;                 // version of the placement that runs if the answer is taken
  std::string reason;                  // on one line, at most kMaxText bytes
  std::string endpoint;                // daemon that gave the answer
};

// Returns the answer of a daemon. The next one of the list is asked after Unavailable, which a
// standby answers. All but the last one have half of the remaining time, so that a daemon that does
// not answer leaves time for the next. errors: InvalidArgument for a name, a timeout, an endpoint
// or a file of `tls`; errors of ReadEndpointSource; Internal for a placement that does not fit;
// others of the daemon, beginning with its endpoint.
absl::StatusOr<PlanAnswer> AskPlan(const PlanningDaemons& daemons, const PlanQuestion& question);

struct PlanOutcome {
  std::string job;
  std::string run_id;
  int64_t version = 0;  // version in the answer
  bool taken = false;   // true: every rank took it; false: no rank did
  std::string reason = {};
};

// Reports an outcome to the daemon that gave the answer, which `daemon` names. errors: as AskPlan.
absl::Status SettlePlan(const PlanningDaemons& daemon, const PlanOutcome& outcome);

}  // namespace eplb
