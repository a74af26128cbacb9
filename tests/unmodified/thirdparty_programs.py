"""Third-party programs that must pass, and the lines that their documentation has users type."""

from __future__ import annotations

from tests.unmodified.thirdparty import ThirdParty, corpus, tagged, tokens, words

ZOO = (
    *("{python}", "-m", "rl_zoo3.train", "--seed", "1"),
    *("--eval-freq", "-1", "--save-freq", "-1", "--log-folder", "logs"),
)
PYTORCH, NANOGPT = "pytorch/examples", "karpathy/nanoGPT"


def zoo(algorithm: str, environment: str, *options: str) -> ThirdParty:
    """RL Baselines3 Zoo: the policy's weights and the table of what it learned."""
    return ThirdParty(
        f"rl_zoo3-{algorithm}",
        (*ZOO, "--algo", algorithm, "--env", environment, *options),
        results=(f"logs/{algorithm}/{environment}_1/{environment}.zip!policy.pth",),
        prints=r"^\|.*\d \|$",
        needs=("rl_zoo3",),
    )


def example(name: str, script: str, *options: str, **more: object) -> ThirdParty:
    """One of pytorch/examples, started in a folder of its own."""
    command = ("{python}", f"{{code}}/{script}", *options)
    return ThirdParty(f"examples-{name}", command, checkout=PYTORCH, **more)  # type: ignore[arg-type]


PACKAGED = (
    zoo("ppo", "CartPole-v1", "-n", "20000"),
    zoo("a2c", "CartPole-v1", "-n", "4000", "--vec-env", "subproc"),
    zoo("dqn", "CartPole-v1", "-n", "9000"),
    zoo("sac", "Pendulum-v1", "-n", "1500"),
    ThirdParty(
        "gensim-word2vec",
        ("{python}", "-m", "gensim.scripts.word2vec_standalone", "-train", "text.txt", "-output", "vectors.txt", "-size", "50",
         "-window", "5", "-iter", "150", "-threads", "1", "-min_count", "1", "-cbow", "1"),
        results=("vectors.txt",),
        needs=("gensim",),
        prepare=words,
    ),
    ThirdParty(
        "spacy-train",
        ("{python}", "-m", "spacy", "train", "tagger.cfg", "--output", "out", "--paths.train", "train.spacy",
         "--paths.dev", "dev.spacy", "--training.max_steps", "400", "--training.eval_frequency", "100"),
        results=("out/model-last/tagger/model", "out/model-last/tok2vec/model"),
        prints=r"^ +\d+ +\d+ ",
        needs=("spacy",),
        prepare=tagged,
    ),
    ThirdParty(
        "accelerate-test_script",
        ("{python}", "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1",
         "--mixed_precision", "no", "--dynamo_backend", "no", "-m", "accelerate.test_utils.scripts.test_script"),
        prints="Test|test",
        needs=("accelerate",),
        slots=2,
    ),
)  # fmt: skip
"""They come with packages that pip installs (the extra ``programs``)."""

CHECKED_OUT = (
    example("reinforce", "reinforcement_learning/reinforce.py", "--seed", "4", "--log-interval", "5", prints="Episode",
            needs=("gymnasium",)),
    example("actor_critic", "reinforcement_learning/actor_critic.py", "--seed", "4", "--log-interval", "5", prints="Episode",
            needs=("gymnasium",)),
    example("word_language_model", "word_language_model/main.py", "--data", "corpus", "--epochs", "2", "--model", "Transformer",
            "--emsize", "64", "--nhid", "64", "--nlayers", "2", "--save", "model.pt", prints="test loss",
            prepare=corpus),
    ThirdParty(
        "nanoGPT",
        # With RANK set it wants a GPU and NCCL; docs/jobs.md has this way to run it as python(1) would.
        ("env", "-u", "RANK", "-u", "LOCAL_RANK", "-u", "WORLD_SIZE",
         "{python}", "train.py", "--device=cpu", "--compile=False", "--dataset=made", "--eval_interval=30", "--eval_iters=2",
         "--gradient_accumulation_steps=2", "--log_interval=1",
         "--block_size=64", "--batch_size=8", "--n_layer=3", "--n_head=4", "--n_embd=96", "--max_iters=120",
         "--always_save_checkpoint=True", "--out_dir=out"),
        results=("out/ckpt.pt",),
        prints="^step",
        prepare=tokens,
        checkout=NANOGPT,
    ),
)  # fmt: skip
"""They lie in repositories, which are not ours to pass on: clone them below the folder that TIDEWRIGHT_PROGRAMS names."""
