"""What each stage of a pipeline does with the micro-batches of a step, in which order. Pure: a schedule gives instructions,
with DeepSpeed's names, and nothing is computed here.

A stage goes forward with as many micro-batches as there are stages behind it, and from then on backward after each forward
pass (1F1B). So it never has more than `stages - stage_id` of them between forward and backward, however many a step has. A
stage asks for what its neighbour sends in the order in which that sends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import ConfigError


@dataclass(frozen=True)
class PipeInstruction:
    """`micro_batch` is its number in this step, of this stage's part of the data; -1: of none."""

    micro_batch: int = -1

    @property
    def name(self) -> str:
        return type(self).__name__


class LoadMicroBatch(PipeInstruction):
    """The first stage takes inputs from the data, and the last one labels."""


class RecvActivation(PipeInstruction):
    """What the stage before has computed."""


class ForwardPass(PipeInstruction):
    pass


class SendActivation(PipeInstruction):
    """To the stage behind."""


class RecvGrad(PipeInstruction):
    """Of what was sent to the stage behind."""


class BackwardPass(PipeInstruction):
    pass


class SendGrad(PipeInstruction):
    """Of what the stage before has sent."""


class ReduceTiedGrads(PipeInstruction):
    """The gradients of a layer that several stages have are summed."""


class OptimizerStep(PipeInstruction):
    pass


class PipeSchedule:
    """Iterating gives lists of instructions: what belongs to one pass through the stage."""

    def __init__(self, micro_batches: int, stages: int, stage_id: int) -> None:
        if micro_batches < 1 or not 0 <= stage_id < stages:
            raise ConfigError(
                "cannot make a schedule",
                f"stage {stage_id} of {stages}",
                f"the micro-batches are {micro_batches}",
                "give a stage below their number, and at least one micro-batch",
            )
        self.micro_batches, self.stages, self.stage_id = micro_batches, stages, stage_id

    @property
    def is_first_stage(self) -> bool:
        return self.stage_id == 0

    @property
    def is_last_stage(self) -> bool:
        return self.stage_id == self.stages - 1

    def steps(self) -> Iterator[list[PipeInstruction]]:
        raise NotImplementedError

    def num_pipe_buffers(self) -> int:
        """How many micro-batches are in the stage at once, at most."""
        return self.micro_batches

    def __iter__(self) -> Iterator[list[PipeInstruction]]:
        return self.steps()

    def forward(self, micro_batch: int) -> list[PipeInstruction]:
        found: list[PipeInstruction] = []
        if not self.is_first_stage:
            found.append(RecvActivation(micro_batch))
        if self.is_first_stage or self.is_last_stage:
            found.append(LoadMicroBatch(micro_batch))
        found.append(ForwardPass(micro_batch))
        if not self.is_last_stage:
            found.append(SendActivation(micro_batch))
        return found

    def backward(self, micro_batch: int) -> list[PipeInstruction]:
        found: list[PipeInstruction] = []
        if not self.is_last_stage:
            found.append(RecvGrad(micro_batch))
        found.append(BackwardPass(micro_batch))
        if not self.is_first_stage:
            found.append(SendGrad(micro_batch))
        return found


class TrainSchedule(PipeSchedule):
    """Of a step: each micro-batch forward and backward, in the order of their numbers, and then the update."""

    def steps(self) -> Iterator[list[PipeInstruction]]:
        ahead = self.num_pipe_buffers() - 1
        for micro_batch in range(self.micro_batches):
            yield self.forward(micro_batch)
            if micro_batch >= ahead:
                yield self.backward(micro_batch - ahead)
        for micro_batch in range(self.micro_batches - ahead, self.micro_batches):
            yield self.backward(micro_batch)
        yield [ReduceTiedGrads(), OptimizerStep()]

    def num_pipe_buffers(self) -> int:
        return min(self.stages - self.stage_id, self.micro_batches)


class InferenceSchedule(PipeSchedule):
    """Each micro-batch forward alone."""

    def steps(self) -> Iterator[list[PipeInstruction]]:
        for micro_batch in range(self.micro_batches):
            yield self.forward(micro_batch)

    def num_pipe_buffers(self) -> int:
        return 1
