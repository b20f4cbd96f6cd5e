// What the ranks say about proposals: the one in flight, and those of earlier daemons.
#ifndef EPLB_SERVER_CORE_RANKS_ANSWERS_H_
#define EPLB_SERVER_CORE_RANKS_ANSWERS_H_

#include "proto/wire/messages.h"
#include "server/core/state/turn.h"

namespace eplb::core {

void HandleReady(Turn& turn, Speaker speaker, const wire::Ready& ready);
void HandleNack(Turn& turn, Speaker speaker, const wire::Nack& nack);
void HandleApplied(Turn& turn, Speaker speaker, const wire::Applied& applied);
void HandleFailed(Turn& turn, Speaker speaker, const wire::Failed& failed);

// A rank of the current incarnation is connected again while a proposal is in flight: what it runs
// counts as Applied, what it is READY for as Ready, and what it missed is sent again.
void HandleRejoin(Turn& turn, Speaker speaker, const wire::Hello& hello);
// A rank said Goodbye while a proposal is in flight: it holds nothing any more.
void HandleRankFinished(Turn& turn, Speaker speaker);

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_RANKS_ANSWERS_H_
