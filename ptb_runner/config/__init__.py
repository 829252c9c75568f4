"""Every option of the program: its name, type, unit, bounds and meaning, in one package.

The dataclasses of this package are the schema that Hydra checks each file of conf/ and each override against.
`option()` adds what a type cannot say: the meaning, the bounds, and whether the option is part of a
cell's identity (``result=True``: another value could give another score) or not.
"""

from ptb_runner.config.agent import AgentConfig, Auth, RepromptConfig
from ptb_runner.config.backend import (
    BACKENDS,
    BackendConfig,
    BeakerConfig,
    BubblewrapConfig,
    DockerConfig,
    KeepModel,
    ModalConfig,
    PodmanConfig,
    PodmanNetwork,
)
from ptb_runner.config.composition import ENV_REFERENCE, composed, register, typed, without_secrets
from ptb_runner.config.declare import option
from ptb_runner.config.judge import (
    CodexConfig,
    JudgeApi,
    JudgeConfig,
    JudgeEffect,
    JudgeEngine,
    JudgesConfig,
    PriceConfig,
)
from ptb_runner.config.launcher import (
    LAUNCHERS,
    BeakerLauncherConfig,
    BeakerPriority,
    CodeFrom,
    DebugConfig,
    InlineConfig,
    JobsConfig,
    LauncherConfig,
    ModalLauncherConfig,
    OnInterrupt,
    SlurmConfig,
    SubmititLocalConfig,
)
from ptb_runner.config.listing import Option, judge_options, options
from ptb_runner.config.schema import (
    GROUPS,
    Config,
    LimitsConfig,
    PreflightConfig,
    ProgressConfig,
    ReportConfig,
    RetryConfig,
    SweepConfig,
    task_env_vars,
)
from ptb_runner.config.serve import SERVES, ExternalServeConfig, ServeConfig, ServedConfig, VllmServeConfig
from ptb_runner.config.task import (
    BenchmarkConfig,
    BudgetConfig,
    ContentConfig,
    ContentKind,
    EvaluationConfig,
    GraderConfig,
    HeldOutConfig,
    Kind,
    MissingScore,
    ModelConfig,
    Network,
    ParityConfig,
    PhaseLimitsConfig,
    PinsConfig,
    SnapshotConfig,
    TryConfig,
)
