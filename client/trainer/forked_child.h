// What a data loader does to a trainer: it forks, and the child has a copy of the client.
#ifndef EPLB_CLIENT_TRAINER_FORKED_CHILD_H_
#define EPLB_CLIENT_TRAINER_FORKED_CHILD_H_

#include <memory>

#include "absl/status/status.h"

#include "client/client.h"

namespace eplb {

// Forks; the child calls its copy of the client, destroys it and exits. Waits for the child.
// errors: Unavailable when there is no child, Internal when a call in it did anything.
absl::Status UseClientInForkedChild(std::unique_ptr<Client>& client);

}  // namespace eplb

#endif  // EPLB_CLIENT_TRAINER_FORKED_CHILD_H_
