// The one collective a trainer must bring: everybody's bytes, in rank order.
#ifndef EPLB_CLIENT_CONTROL_EXCHANGE_H_
#define EPLB_CLIENT_CONTROL_EXCHANGE_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace eplb {

// Called by every rank the same number of times in the same order; blocks until all have called,
// with a deadline of its own. A torch store, MPI_Allgather, MakeTcpExchange or the daemon's
// rendezvous can stand behind it.
using Exchange = std::function<absl::StatusOr<std::vector<std::string>>(std::string_view bytes)>;

}  // namespace eplb

#endif  // EPLB_CLIENT_CONTROL_EXCHANGE_H_
