// Shares the limit of open files among streams, HTTP, queries and the daemon's own files.
#include "server/descriptor_plan.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace eplb {

namespace {

constexpr int64_t kMostDescriptors = std::numeric_limits<int32_t>::max();
// Log, store with its journal, listeners, event queues of gRPC: 17 were counted.
constexpr int64_t kOwn = 24;
// Connections of queries and operators. Over the Unix socket they are left when ranks take all
// descriptors of TCP.
constexpr int64_t kQueries = 16;
constexpr int64_t kLeastHttp = 4;
constexpr int64_t kMostHttp = 256;
constexpr int64_t kHttpPart = 64;  // HTTP gets three times the limit divided by this
constexpr int64_t kHttpThreads = 8;

// Connections at each of the three stages of HttpServer, and the ones that its threads answer.
int64_t HttpShare(int64_t connections) { return 3 * connections + kHttpThreads; }

}  // namespace

int64_t DescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMostDescriptors;
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, kMostDescriptors));
}

int64_t RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
  }
  return DescriptorLimit();
}

DescriptorPlan PlanDescriptors(int64_t limit, int32_t wanted) {
  DescriptorPlan plan;
  const int64_t http = std::clamp(limit / kHttpPart, kLeastHttp, kMostHttp);
  plan.http_connections = static_cast<size_t>(http);
  plan.unix_below = static_cast<int32_t>(std::max<int64_t>(limit - HttpShare(http), kOwn + 1));
  plan.tcp_below = static_cast<int32_t>(std::max<int64_t>(plan.unix_below - kQueries, kOwn + 1));
  const int64_t fit = std::max<int64_t>(limit - HttpShare(http) - kQueries - kOwn, 1);
  plan.max_sessions = static_cast<int32_t>(std::min<int64_t>(wanted, fit));
  if (fit >= wanted) {
    plan.no_more_sessions = absl::StrCat("limits.max_sessions = ", wanted, " streams are open");
    return plan;
  }
  plan.no_more_sessions =
      absl::StrCat(fit, " streams are open, and the daemon's limit of ", limit,
                   " open files has room for no more; limits.max_sessions is ", wanted);
  plan.warning = absl::StrCat(
      "limits.max_sessions is ", wanted, ", but the limit of ", limit, " open files has room for ",
      fit, " streams: raise the limit to ", wanted + HttpShare(kMostHttp) + kQueries + kOwn,
      " (LimitNOFILE= of the service, ulimit -Hn) or lower limits.max_sessions");
  return plan;
}

}  // namespace eplb
