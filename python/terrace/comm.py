"""DeepSpeed's comm for the one process that trains: its questions have answers, and its exchanges leave tensors as they
are. Several processes are refused, as terrace.initialize refuses them."""


def init_distributed(dist_backend=None, *arguments, **named):
    """Nothing is to be started. Raises ConfigError where a launcher has started several processes."""
    from .torch.engine.launched import require_alone

    require_alone()


def is_available():
    return True


def is_initialized():
    return True


def get_rank(group=None):
    return 0


def get_local_rank():
    return 0


def get_world_size(group=None):
    return 1


def barrier(*arguments, **named):
    init_distributed()


def all_reduce(tensor, *arguments, **named):
    """The sum over one process."""
    init_distributed()


def broadcast(tensor, src=0, *arguments, **named):
    """From the one process to itself."""
    init_distributed()


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"terrace.comm has no {name!r}: one process trains the whole model, so there is nothing to exchange; for "
        "processes of your own use torch.distributed"
    )
