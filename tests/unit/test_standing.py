"""What `rlhf up` tells Prefect's command line."""

from tasks.service import standing


def test_prefects_command_line_is_told_and_a_file_of_the_users_is_left_alone(tmp_path):
    assert standing._tell_clients(tmp_path, "http://127.0.0.1:1/api")
    assert standing._tell_clients(tmp_path, "http://127.0.0.1:2/api")
    file = tmp_path / standing.CLIENT_FILE
    assert 'url = "http://127.0.0.1:2/api"' in file.read_text()
    file.write_text('[api]\nurl = "http://mine/api"\n')
    assert not standing._tell_clients(tmp_path, "http://127.0.0.1:3/api")
    assert "mine" in file.read_text()


def test_down_without_anything_running_ends_nothing_and_keeps_the_users_file(tmp_path):
    (tmp_path / standing.CLIENT_FILE).write_text("[api]\n")
    assert standing.bring_down(tmp_path, print) == []
    assert (tmp_path / standing.CLIENT_FILE).exists()
